"""A resume that is refused changes nothing; one that differs says how."""

import json
import shutil

import pytest
from _survive import make_world, rewards_override, run_here, run_processes

from marble.errors import MarbleError
from marble.training import checkpoint as checkpoints
from marble.training.checkpoint import load_state


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("refused"))


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    outcome, _ = run_here(recipe, out, "train.steps=4", "eval.at_start=false")
    assert outcome.finished
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def contents(folder):
    """Every file with its bytes and the time it was last written."""
    return {
        p.relative_to(folder): (p.read_bytes(), p.stat().st_mtime_ns)
        for p in folder.rglob("*")
        if p.is_file()
    }


def refused(run, *overrides):
    """What a resume says that is refused; asserts that the folder is as it was."""
    before = contents(run)
    error, _ = run_here(run / "config.yaml", run, *overrides, resume=True)
    assert isinstance(error, MarbleError)
    assert contents(run) == before
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    return str(error)


def rewrite_state(run, change):
    """Changes `trainer.json` of the newest checkpoint, as another version would have written it."""
    folder = sorted((run / "checkpoints").glob("step-*"))[-1]
    path = folder / checkpoints.TRAINER
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))
    manifest = json.loads((folder / checkpoints.MANIFEST).read_text())
    manifest["files"][checkpoints.TRAINER] = checkpoints._digest(path)
    (folder / checkpoints.MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_another_model_or_other_rewards(recipe, run):
    assert "is the rank the same?" in refused(run, "model.lora.rank=3", "train.steps=9")
    assert "same balance.method" in refused(run, "balance.method=mgda", "train.steps=9")
    fewer = rewards_override(recipe.parent / "toys.py", "red", "blue")
    assert "same balance.method and rewards" in refused(run, fewer, "train.steps=9")
    assert "no such folder" in refused(run, "model.path=/no/such/folder")


def test_a_reward_that_no_longer_loads(run, tmp_path):
    (tmp_path / "late.py").write_text("def red(i, p, m): return [0.0] * len(p)\n")
    path = run / "config.yaml"
    entry = rewards_override(tmp_path / "late.py", "gone")
    assert "has no 'gone'" in refused(run, entry)
    assert path.exists()


def test_no_whole_checkpoint_and_a_damaged_one_beside_a_recipe_that_does_not_fit(run):
    newest, older = sorted((run / "checkpoints").glob("step-*"), reverse=True)
    (newest / "state" / "live.safetensors").write_bytes(b"")
    assert "is the rank the same?" in refused(run, "model.lora.rank=3")
    (older / "state" / "live.safetensors").write_bytes(b"")
    assert "no complete checkpoint" in refused(run)


def test_rows_that_are_gone(run):
    text = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(text[: len(text) // 2])
    assert "at the checkpoint; restore the file" in refused(run, "train.steps=9")


def test_a_tracker_that_is_not_installed(run, monkeypatch):
    import builtins

    real = builtins.__import__

    def without(name, *args, **options):
        if name == "trackio":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "trackio, which is not installed" in refused(run, "log.trackers=[trackio]")


def test_a_checkpoint_of_another_version_says_which(run):
    def newer(meta):
        meta.update(format=checkpoints.FORMAT + 1, version="7.8.9")

    rewrite_state(run, newer)
    line = refused(run, "train.steps=9")
    assert "written by marble 7.8.9" in line and "Resume with the version that wrote it" in line


@pytest.mark.parametrize("key", ["step", "epoch", "processes", "balance", "guard", "recorder"])
def test_a_state_without_a_key(run, key):
    folder = rewrite_state(run, lambda meta: meta.pop(key))
    assert f"no valid '{key}'" in refused(run, "train.steps=9")
    with pytest.raises(MarbleError, match=key):  # eval and geometry read the same file
        load_state(folder)


def test_a_state_with_other_insides(run):
    rewrite_state(run, lambda meta: meta["guard"].pop("usual"))
    assert "does not fit (KeyError: 'usual'); it was written by marble" in refused(run)


@pytest.mark.slow
def test_refused_on_two_processes(run):
    before = contents(run)
    statuses = run_processes(2, run / "config.yaml", run, "model.lora.rank=3", resume=True)
    assert statuses == [2, 2]
    assert contents(run) == before


def test_a_finished_run_says_how_to_go_on(run):
    outcome, said = run_here(run / "config.yaml", run, resume=True)
    assert outcome.finished and "resuming" not in said
    step = outcome.step
    assert f"all {step} steps are done" in said
    assert f"marble train --resume {run} train.steps={2 * step}" in said.replace("\n", " ")


def test_another_seed_is_told(run):
    outcome, said = run_here(run / "config.yaml", run, "train.seed=7", "train.steps=5", resume=True)
    assert outcome.finished
    assert "saved with train.seed=0, resumed with 7" in said
    outcome, said = run_here(run / "config.yaml", run, "train.seed=7", "train.steps=6", resume=True)
    assert outcome.finished and "train.seed" not in said


def test_a_launcher_that_restarts_resumes_with_the_words_of_the_start(
    recipe, tmp_path, monkeypatch
):
    """torchrun gives every start the same command line; only a run of another recipe is refused."""
    words = ["train.steps=2", "eval.at_start=false"]
    out = tmp_path / "run"
    assert run_here(recipe, out, *words, "train.max_hours=1e-9")[0].step == 1
    again, _ = run_here(recipe, out, *words, "train.max_hours=1e-9")
    assert "already holds a run" in str(again)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    outcome, said = run_here(recipe, out, *words, "train.max_hours=1e-9")
    assert outcome.step == 2 and "resuming after step 1" in said
    other, _ = run_here(recipe, out, *words, "train.seed=5")
    assert "already holds a run" in str(other)
