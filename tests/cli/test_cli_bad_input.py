"""A user's mistake: one clear line on stderr, status 2, no traceback, and nothing begun."""

import json

import pytest
import yaml


@pytest.fixture
def refuses(marble, monkeypatch, tmp_path):
    """Asserts that the command refuses, at once and in one line; gives the line."""

    def too_late(*args, **options):
        raise AssertionError("the model was loaded before the mistake was found")

    monkeypatch.setattr("marble.models.sd3.SD3Adapter.from_folder", too_late)
    monkeypatch.chdir(tmp_path)

    def check(*words: object) -> str:
        result = marble(*words)
        assert result.status == 2, result.err
        assert result.out == ""
        assert "Traceback" not in result.err
        (line,) = result.err.strip().splitlines()
        assert line.startswith("marble: ")
        assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
        return line

    return check


def test_empty_prompt_file(refuses, toy, tmp_path):
    empty = tmp_path / "prompts.txt"
    empty.write_text("\n  \n")
    line = refuses("train", toy.recipe_file, f"data.sources.general.path={empty}")
    assert str(empty) in line and "no prompts" in line


def test_missing_prompt_file(refuses, toy):
    line = refuses("train", toy.recipe_file, "data.sources.general.path=nowhere.txt")
    assert "nowhere.txt: no such prompt file" in line


@pytest.mark.parametrize("split", ["train", "test"])
def test_prompt_longer_than_the_encoder_takes(refuses, toy, tmp_path, split):
    folder = tmp_path / "long"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.txt").write_text("a cat\n" + "so " * 60 * (name == split) + "big\n")
    line = refuses("train", toy.recipe_file, f"data.sources.general.path={folder}")
    assert "prompt too long" in line and "so so so" in line
    assert "model.truncate_prompts=true" in line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("balance.metod=marble", "balance.metod: unknown key; did you mean balance.method?"),
        ("train.lr=1e-3", "optim.lr"),
        ("ballance.rho=0.5", "balance"),
        ("train.steps=many", "train.steps: must be a whole number, got 'many'"),
        ("optim.lr=-1", "optim.lr: must be > 0"),
        ("balance.method=marbel", "did you mean marble?"),
        ("data.images_per_prompt=1", "data.images_per_prompt: must be at least 2"),
        ("rewards.rde.weight=2", "did you mean red?"),
        ("train.steps", "train.steps: a field of the recipe is set as train.steps=VALUE"),
        ("steps=3", "did you mean train.steps, rollout.steps or eval.steps?"),
        ("train.precision=int8", "train.precision: must be one of fp32, bf16, fp16, auto, got"),
        ("model.compile=maybe", "model.compile: must be one of true, false, auto, got 'maybe'"),
        ("rewards.red.isolate=maybe", "red.isolate: must be true or false, or a number, got"),
        ("rewards.red.isolate={a: 1}", "red.isolate: must be true or false, or a number, got"),
        ("rewards.red.isolate=-1", "red.isolate: must be true or false, or > 0, got -1"),
        ("rewards.drop=[rde]", "override: rewards.drop: no reward called 'rde'"),
        ("balance.method=distil", "distil is an objective; set objective.name=distil"),
        ("objective.name=uniform", "uniform is a method; set balance.method=uniform"),
        ("objective.clip=1", "objective.clip: unknown key; an option of objective.name awm"),
        ("train.steps_per_epoch=10", "10 steps cannot share 9 samples"),
    ],
)
def test_recipe_mistakes(refuses, toy, override, said):
    assert said in refuses("train", toy.recipe_file, override)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "no such command 'trian'; did you mean train?"),
        (["bench", "nothing"], "no such command 'nothing'; see `marble bench --help`"),
        (["--bogus"], "--bogus: no such option of `marble`; see `marble --help`"),
        (
            ["train", "--rsume", "x"],
            "--rsume: no such option of `marble train`; did you mean --",
        ),
        (["bench", "train", "--lr", "1"], "a field of the recipe is set as optim.lr=VALUE"),
        (["compare", "--steps", "3"], "--steps: no such option of `marble compare`; see `marble"),
        (["train", "--out"], "option '--out' requires an argument; see `marble train --help`"),
        (["sample", "base"], "PROMPT is missing: one or more prompts; see `marble sample --help`"),
        (["serve"], "REWARD is missing"),
        (["sample", "base", "x", "-n", "0"], "--count: must be at least 1; see"),
        (["sample", "base", "x", "--seed", "a"], "--seed: must be a whole number; see"),
        (["serve", "ocr", "--port", "99999"], "--port: must be at most 65535; see"),
        (["merge", "studio-trained", "--weights", "nan"], "--weights nan: must be numbers"),
        (["merge", "studio-trained", "--weights", "inf"], "--weights inf: must be numbers"),
        (
            ["merge", "studio-trained", "--weights", "1,2"],
            "1,2: give one weight per LoRA",
        ),
        (["sample", "base", "x", "--prefer", "ocr=nan"], "--prefer ocr=nan: must be like ocr=1.5"),
        (
            ["compare", "--paper", "no.json"],
            "(No such file or directory); give what `marble",
        ),
        (["diagnose", "one", "two"], "(two); see `marble diagnose --help`"),
        (["serve", "ocr", "--device", "tpu"], "--device tpu: must be cpu or cuda"),
        (["study", "mine.yaml", "--device", "tpu"], "--device tpu: must be cpu or cuda"),
        (["doctor", "--gpus", "2"], "--gpus 2: how many of which? Name the card too"),
        (["bench", "loop", "studio-grpo"], "grpo trains on the paths of its rollouts, which a"),
        (["bench", "loop", "--out", "."], ".: a folder; give the name of a file"),
        (["bench", "options", "--out", "/proc/x/y.json"], "/proc/x: cannot be created"),
    ],
)
def test_mistakes_in_the_words_of_a_command(refuses, words, said):
    assert said in refuses(*words)


def test_recipe_files_that_hold_none(refuses, tmp_path):
    path = tmp_path / "mine.yaml"
    for text, holds in (("", "nothing"), ("[1]", "a list"), ("7", "a single value")):
        path.write_text(text)
        assert f"this file holds {holds}; begin it with `extends: studio`" in refuses("train", path)
    assert "did you mean mine.yaml?" in refuses("train", "mine.yml")
    assert "did you mean mine.yaml?" in refuses("train", "miine.yaml")
    assert "`marble recipes` lists those that ship" in refuses("train", "nowhere.yaml")


def test_mistakes_in_a_file_name_the_file(refuses, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: studio-fast\nbalance: {every: 2\n")
    assert "mine.yaml:" in refuses("train", path)
    path.write_text("extends: studio-fast\nbalance: {every: 0}\n")
    assert f"{path}: balance.every: must be ≥ 1" in refuses("train", path)


def test_reward_that_is_not_there(refuses, toy):
    for reward, said in (
        ("pikscore", "did you mean pickscore?"),
        ("no_such_package.rewards:score", "cannot import no_such_package.rewards"),
        ("nowhere.py:score", "nowhere.py does not exist; put it beside the recipe"),
        ("nowhere.py", "reward nowhere.py: a file; name the function in it, nowhere.py:FUNCTION"),
        (f"{toy.rewards_file}:__doc__", "is neither a function nor a reward"),
        (f"{toy.rewards_file}:rde", "did you mean red?"),
    ):
        line = refuses("train", toy.recipe_file, f"rewards.train=[{{name: x, reward: '{reward}'}}]")
        assert said in line


def test_reward_that_cannot_be_called_as_one(refuses, toy, tmp_path):
    (tmp_path / "odd.py").write_text(
        "def one(images): ...\ndef score(images, prompts, metadata): ..."
    )
    reward = "{name: x, reward: 'odd.py:one'}"
    said = "it is called with (images, prompts, metadata) and its options"
    line = refuses("train", toy.recipe_file, f"rewards.train=[{reward}]")
    assert f"odd.py:one: too many positional arguments; {said}" in line
    reward = "{name: x, reward: 'odd.py:score', options: {scale: 2}}"
    line = refuses("train", toy.recipe_file, f"rewards.train=[{reward}]")
    assert f"odd.py:score: got an unexpected keyword argument 'scale'; {said}" in line


def test_reward_whose_package_is_not_installed(refuses, toy, tmp_path):
    (tmp_path / "needy.py").write_text("import not_installed_anywhere\n")
    reward = f"{tmp_path / 'needy.py'}:score"
    line = refuses("train", toy.recipe_file, f"rewards.train=[{{name: x, reward: '{reward}'}}]")
    assert "not_installed_anywhere" in line


def test_two_rewards_of_one_name(refuses, toy):
    entry = f"{{name: red, reward: '{toy.rewards_file}:dark'}}"
    line = refuses("train", toy.recipe_file, f"rewards.add=[{entry}]")
    assert "two rewards are called 'red'" in line


def test_model_folder_of_another_family(refuses, toy, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    index = {"_class_name": "OtherPipeline", "_diffusers_version": "0.36.0"}
    (folder / "model_index.json").write_text(json.dumps(index))
    line = refuses("train", toy.recipe_file, f"model.path={folder}")
    assert "OtherPipeline" in line and "StableDiffusion3Pipeline" in line


def test_model_folder_without_one_of_its_parts(refuses, toy, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    index = {"_class_name": "FluxPipeline", "_diffusers_version": "0.36.0"}
    (folder / "model_index.json").write_text(json.dumps(index))
    line = refuses("train", toy.recipe_file, f"model.path={folder}")
    assert "a FluxPipeline needs a transformer, which model_index.json lacks" in line


def test_options_that_the_family_does_not_have(refuses, toy):
    line = refuses("train", toy.recipe_file, "model.options.guidance=3.5")
    assert "model.options.guidance: unknown key; StableDiffusion3Pipeline has: none" in line
    assert "no such folder" in refuses("train", toy.recipe_file, "model.path=/no/such/folder")


def test_unknown_recipe_and_wrong_use(refuses, trained, toy, tmp_path):
    assert "did you mean studio-fast?" in refuses("train", "studio-fats")
    assert "one recipe at a time" in refuses("train", "studio", "studio-fast")
    assert "not a run folder" in refuses("train", "--resume", tmp_path)
    assert "--resume takes the recipe" in refuses("train", "studio", "--resume", trained)
    assert "must be cpu or cuda" in refuses("train", toy.recipe_file, "--device", "gpu")


def test_a_folder_that_holds_a_run_is_left_alone(refuses, toy, trained):
    before = (trained / "metrics.jsonl").read_bytes()
    line = refuses("train", toy.recipe_file, "--out", trained)
    assert "already holds a run" in line and "--resume" in line
    assert (trained / "metrics.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_written(refuses, toy, tmp_path):
    (tmp_path / "file").write_text("")
    assert "choose another --out" in refuses("train", toy.recipe_file, "--out", tmp_path / "file/x")
    assert "choose another" in refuses("eval", "base", "--out", tmp_path / "file")
    assert "choose another" in refuses("sample", "base", "a cat", "--out", tmp_path / "file")


def test_a_failed_start_leaves_no_folder(refuses, toy, tmp_path):
    refuses("train", toy.recipe_file, "model.path=/no/such/folder", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", [("eval",), ("sample", "a cat")])
def test_targets_that_are_none(refuses, tmp_path, verb):
    verb, *rest = verb
    assert "no such file or folder" in refuses(verb, tmp_path / "nothing", *rest)
    (tmp_path / "empty").mkdir()
    assert "holds no run and no LoRA" in refuses(verb, tmp_path / "empty", *rest)


def test_eval_and_sample_mistakes(refuses, toy, trained, tmp_path):
    assert "eval.promts: unknown key" in refuses("eval", trained, "eval.promts=3")
    assert "an override looks like" in refuses("eval", trained, "fast")
    assert "--seed -1" in refuses("sample", trained, "a cat", "--seed", "-1")
    assert "dpm" in refuses("sample", trained, "a cat", "--sampler", "ddim")
    assert "prompt too long" in refuses("sample", trained, "so " * 60, "--out", tmp_path)
    path = tmp_path / "not-lora"
    path.mkdir()
    (path / "model.safetensors").write_bytes(b"\x00" * 7)
    line = refuses("eval", path, "--recipe", toy.recipe_file)
    assert "pytorch_lora_weights.safetensors" in line


def test_a_run_folder_that_is_nearly_named(refuses, tmp_path):
    (tmp_path / "runs" / "warm").mkdir(parents=True)
    (tmp_path / "runs" / "warm" / "config.yaml").write_text("name: warm\n")
    (tmp_path / "file").write_text("")
    for verb in ("report", "compare", "diagnose", "geometry"):
        assert "runs/wram: no such folder; did you mean runs/warm?" in refuses(verb, "runs/wram")
        assert "warm: no such folder; did you mean runs/warm?" in refuses(verb, "warm")
        assert "file: a file, not a run folder; give a folder that" in refuses(verb, "file")
        assert "~nobody/x: no such folder" in refuses(verb, "~nobody/x")


def test_compare_mistakes(refuses, trained, tmp_path):
    assert "not a run folder" in refuses("compare", trained, tmp_path)
    young = tmp_path / "young"
    young.mkdir()
    (young / "config.yaml").write_text(yaml.safe_dump({"balance": {"method": "marble"}}))
    assert "has no evaluation of the trained model yet" in refuses("compare", young)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["studio", "objective.name=grpo"], "rollout.sampler: dpm is deterministic"),
        (["studio-dpo", "data.images_per_prompt=1"], "data.images_per_prompt: must be at least 2"),
        (["studio-dpo", "data.images_per_prompt=5"], "data.images_per_prompt: objective dpo"),
        (["studio-dpo", "train.batch_size=5"], "train.batch_size: objective dpo compares pairs"),
        (["studio-grpo", "rollout.guidance=3.0"], "rollout.guidance: objective grpo"),
        (["studio-grpo", "eval.sampler=null"], "eval.sampler: evaluation draws without noise"),
        (["studio-awm", "balance.target=reward"], "balance.target: reward splits off"),
    ],
)
def test_what_an_objective_cannot_do_is_one_line(marble, tmp_path, words, said):
    result = marble("train", *words, "--out", tmp_path / "run")
    assert result.status == 2
    (line,) = result.err.strip().splitlines()
    assert said in line
    assert not (tmp_path / "run").exists()
