"""The mistakes that ended in a traceback once: each is one line now, and status 2."""

import json
import os
import shutil
import subprocess
import sys

import pytest

DIGITS = "9" * 5000
DEEP = "[" * 20_000
BEYOND = 2**70


@pytest.fixture
def refuses(marble, monkeypatch, tmp_path):
    """Asserts one line and status 2; gives the line."""

    def too_late(*args, **options):
        raise AssertionError("the model was loaded before the mistake was found")

    monkeypatch.setattr("marble.models.sd3.SD3Adapter.from_folder", too_late)
    monkeypatch.chdir(tmp_path)

    def check(*words: object) -> str:
        result = marble(*words)
        assert result.status == 2, result.err
        (line,) = result.err.strip().splitlines()
        assert line.startswith("marble: ") and len(line) < 2100
        assert not list(tmp_path.glob("marble-error-*"))
        return line

    return check


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rewards.drop=5", "rewards.drop: name rewards"),
        ("rewards.drop={a: 1}", "rewards.drop: name rewards"),
        ("rewards=5", "rewards: must be a mapping"),
        ("train.steps=0x_", "must be a whole number, got '0x_'"),
        ("train.steps=!!int x", "'x' is no whole number"),
        ("train.steps=!!float 1:30", "is no number"),
        ("train.overlap_rewards=!!bool perhaps", "is no truth value"),
        (f"train.steps={DIGITS}", "is no whole number"),
        (f"optim.lr={DIGITS}.0", "is no number"),
        (f"model.path={DEEP}", "nested deeper than"),
        (f"rewards.red.options={'{a: ' * 150}1{'}' * 150}", "nested deeper than"),
        ("rewards.red.options=&a [*a]", "contains itself"),
        (f"train.seed={BEYOND}", "train.seed: must be ≤"),
        (f"eval.seed={BEYOND}", "eval.seed: must be ≤"),
        (f"train.steps={BEYOND}", "train.steps: must be ≤"),
        ("model.max_sequence_length=0", "model.max_sequence_length: must be ≥ 1"),
        ("rewards.red.reward=':f'", "rewards.red.reward: must be like package.module:callable"),
        ("rewards.red.reward='.up:f'", "must be like"),
        ("rewards.red.reward='file.py:'", "must be like"),
        ("balance.stages.²=1", "balance.stages"),
        (f"balance.stages.{DIGITS}=1", "balance.stages"),
        ("a." * 5000 + "b=1", "an override looks like"),
        ('model.path="\\0"', "no text"),
        ('model.path="\\ud800"', "no text"),
        (f"data.sources.general.path={'x' * 5000}", "no such prompt file"),
        ("data.sources.general.path=~nobody/x", "no such prompt file"),
        ("name=../../escaped", "name:"),
    ],
)
def test_overrides(refuses, toy, override, said):
    assert said in refuses("train", toy.recipe_file, override)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"train: null", "train: must be a mapping"),
        (b"rewards: {add: [x]}\nextends: studio\ndata: 5", "data: must be a mapping"),
        (b"rewards: {train: 5, add: [x]}", "rewards.train: must be a list"),
        (b"extends: studio\nrewards: {drop: [[1]]}", "rewards.drop"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"\x00", "not valid YAML"),
        (b"5", "a recipe is a mapping"),
        (b"? [a, b]\n: 1", "keys are words"),
        (b"train: !!python/object/apply:os.system [true]", "not valid YAML"),
        (b"train: !!set {a}", "not valid YAML"),
        (b"extends: " + b"x" * 5000, "no recipe or file called"),
        (b"name: ../up\nextends: studio", "name:"),
        (b"a: &a [1,1,1,1,1,1,1,1,1,1]\n" + b"".join(
            b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 10))
            for c in range(97, 105)
        ), "more than 1,000,000 values"),
    ],
)  # fmt: skip
def test_recipe_files(refuses, tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    assert said in refuses("recipes", path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r'{"prompt": "a \ud800 cat"}', "lone surrogate"),
        (r'{"prompt": "a cat", "tags": [{"x": "\udfff"}]}', "lone surrogate"),
        ('{"prompt": "a cat", "x": ' + "[" * 20_000 + "}", "nesting too deep"),
        ('{"prompt": "a cat", "x": ' + DIGITS + "}", "a number too long"),
        ('{"prompt": 5}', "needs a 'prompt'"),
        ("5", "expected a JSON object"),
    ],
)
def test_prompt_files(refuses, toy, tmp_path, line, said):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a dog"}\n' + line + "\n")
    found = refuses("train", toy.recipe_file, f"data.sources.general.path={path}")
    assert said in found and f"{path}:2" in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\x80\x81\x00", "not UTF-8 text"),
        (b"cells: {a: {}}\nseeds: [true]", "list of whole numbers"),
        (b"cells: {a: {}}\ncommon: 5", "common: give a mapping"),
        (b"cells: {a: {}}\njudge: 5", "judge: give a list"),
        (b"cells: {../../up: {}}", "cannot be the name of a folder"),
        (b"cells: {a: {}}\nsettings: {../up: {}}", "cannot be the name of a folder"),
        (b"cells: {a: {}}\nwithout: {s: [[1]]}\nsettings: {s: {}}", "there is no cell"),
        (b"cells: " + b"{a: " * 20_000, "nested deeper"),
        (b"cells: {a: {}}\nrecipe: " + b"x" * 5000 + b".yaml", "no recipe or file"),
    ],
)
def test_studies(refuses, tmp_path, text, said):
    path = tmp_path / "s.yaml"
    path.write_bytes(text)
    assert said in refuses("study", path, "--no-run")


def test_a_page_that_cannot_be_written(refuses, trained, tmp_path):
    assert "a folder; give the page a name" in refuses("report", trained, "-o", tmp_path)
    (tmp_path / "file").write_text("")
    assert "give a file with -o" in refuses("report", trained, "-o", tmp_path / "file" / "x.html")
    assert "give a file with -o" in refuses("report", trained, "-o", "/proc/nothing/x.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_page_into_a_read_only_folder(refuses, trained, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "give a file with -o" in refuses("report", trained, "-o", tmp_path / "closed" / "x.html")


def test_run_folders_with_other_things_in_them(refuses, marble, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    for index in run.glob("evals/*/index.json"):
        index.write_text("5")
    (run / "run.json").write_text(json.dumps({"seconds": 10**400, "status": 5, "steps": "x"}))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 1' + "0" * 400 + "}\n[]\n5\n")
    assert marble("compare", run).status == 0
    assert marble("report", run).status == 0
    (run / "config.yaml").write_bytes(b"\xff")
    for verb in ("compare", "report", "eval", "geometry"):
        assert "not UTF-8 text" in refuses(verb, run)


def test_seeds_of_pictures(refuses):
    assert "--seed" in refuses("sample", "base", "a cat", "--seed", BEYOND)


def test_what_is_left_is_one_line_and_a_file(marble, monkeypatch, tmp_path):
    """A fault of ours: status 1, one line, and the traceback in a file to send."""

    def broken():
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("marble.recipe.list_recipes", broken)
    monkeypatch.chdir(tmp_path)
    result = marble("recipes")
    assert result.status == 1 and result.out == ""
    (line,) = result.err.strip().splitlines()
    assert line.startswith("marble: unexpected ZeroDivisionError: two lines; ")
    (kept,) = tmp_path.glob("marble-error-*.txt")
    assert str(kept) in line
    text = kept.read_text()
    assert "Traceback" in text and "in broken" in text and "marble recipes" in text


def test_the_file_goes_elsewhere_where_this_folder_is_gone(marble, monkeypatch, tmp_path):
    def broken():
        raise RuntimeError("x")

    monkeypatch.setattr("marble.recipe.list_recipes", broken)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert marble("recipes").status == 1
    assert len(list(tmp_path.glob("marble-error-*.txt"))) == 1


def test_a_terminal_without_greek_letters(tmp_path):
    words = [sys.executable, "-m", "marble", "recipes", "--fields", "optim.eps"]
    told = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, text=True, env=told, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "AdamW's ?." in done.stdout
