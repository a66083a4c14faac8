"""Damaged files, full disks, folders that cannot be written: one clear line, nothing lost."""

import errno
import json
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from _survive import (
    assert_same_run,
    final_state,
    make_world,
    rewards_override,
    rows,
    run_here,
    run_processes,
    run_to_end,
    spawn,
    start_cli,
    wait_for,
)

from marble.errors import CheckpointError, MarbleError
from marble.training import checkpoint as checkpoints
from marble.training.checkpoint import CheckpointWriter, State, damage, newest_complete

FILLER = '''
import os

calls = 0


def filler(images, prompts, metadata):
    """Fills the disk at its third batch, but for a few bytes."""
    global calls
    calls += 1
    if calls == 3:
        folder, left = os.environ["SURVIVE_FILL"].rsplit(":", 1)
        with open(f"{folder}/ballast", "wb") as file:
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            file.write(b"0" * (free - int(left)))
    return images[:, 0].float().mean((1, 2)).div(255).tolist()
'''
ONE_CALL_PER_STEP = [
    "train.steps=4",
    "eval.at_start=false",
    "train.overlap_rewards=false",
    "rollout.batch_size=12",
    "train.probe=0",
]
"""The filler counts its calls."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """Four steps, the checkpoints of the last two kept."""
    out = tmp_path_factory.mktemp("finished") / "run"
    outcome, _ = run_here(recipe, out, "train.steps=4", "eval.at_start=false")
    assert outcome.finished
    return out


def harm(path, how):
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(bytes(path.stat().st_size))


def files_of(checkpoint):
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    return ["manifest.json", *manifest["files"]]


@pytest.mark.parametrize("how", ["truncated", "zeroed", "deleted"])
def test_each_file_damaged_is_named_and_the_checkpoint_before_is_used(finished, tmp_path, how):
    names = files_of(finished / "checkpoints" / "step-000004")
    assert {"state/live.safetensors", "state/random.safetensors", "state/trainer.json"} < {*names}
    for name in names:
        folder = tmp_path / name.replace("/", "-")
        shutil.copytree(finished / "checkpoints", folder)
        harm(folder / "step-000004" / name, how)
        found, passed_over = newest_complete(folder)
        assert found == folder / "step-000003"
        assert list(passed_over) == [folder / "step-000004"]
        assert name in passed_over[folder / "step-000004"]


@pytest.mark.parametrize(
    "how, name",
    [
        ("truncated", "state/optimizer.safetensors"),
        ("zeroed", "state/trainer.json"),
        ("deleted", "manifest.json"),
    ],
)
def test_resuming_past_a_damaged_checkpoint_keeps_it_and_ends_the_same(
    finished, tmp_path, how, name
):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    bad = out / "checkpoints" / "step-000004"
    harm(bad / name, how)
    before = {p.relative_to(bad): p.read_bytes() for p in bad.rglob("*") if p.is_file()}
    outcome, said = run_here(out / "config.yaml", out, resume=True)
    assert outcome.finished
    assert f"passed over step-000004: {name} is" in said
    aside = out / "checkpoints" / "damaged-step-000004"
    assert {p.relative_to(aside): p.read_bytes() for p in aside.rglob("*") if p.is_file()} == before
    assert_same_run(finished, out)


def test_with_no_whole_checkpoint_nothing_is_touched(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for step in (3, 4):
        (out / "checkpoints" / f"step-{step:06d}" / "state" / "live.safetensors").unlink()
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    error, _ = run_here(out / "config.yaml", out, resume=True)
    assert isinstance(error, MarbleError) and "\n" not in str(error)
    assert "step-000003: state/live.safetensors is missing" in str(error)
    assert "step-000004: state/live.safetensors is missing" in str(error)
    after = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    written = {p for p in after if after[p] != before.get(p)}
    assert not {p for p in before if p not in after}
    assert {p.name for p in written} <= {"environment.json"}


def test_a_shortened_metrics_file_is_not_filled_up_with_zeros(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "metrics.jsonl").write_text("")
    error, _ = run_here(out / "config.yaml", out, "train.steps=5", resume=True)
    assert isinstance(error, CheckpointError) and "metrics.jsonl" in str(error)
    assert (out / "metrics.jsonl").read_text() == ""


def test_the_newest_checkpoints_are_kept_and_leftovers_cleared(tmp_path):
    (tmp_path / ".writing-step-000009" / "lora").mkdir(parents=True)
    writer = CheckpointWriter(tmp_path, keep=2)
    assert not list(tmp_path.iterdir())
    for step in (1, 2, 3):
        writer.save(step, State({"live": {}}, {"step": step}), lambda folder: None)
    writer.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-000002", "step-000003"]
    assert json.loads((tmp_path / "latest").read_text())["folder"] == "step-000003"
    assert damage(tmp_path / "step-000003") is None


def test_a_failing_write_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path, keep=2)
    writer.save(1, State({"live": {}}, {"step": 1}), lambda folder: None)
    writer.wait()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full)
    writer.save(2, State({"live": {}}, {"step": 2}), lambda folder: None)
    with pytest.raises(CheckpointError, match="No space left on device"):
        writer.close()
    assert newest_complete(tmp_path) == (tmp_path / "step-000001", {})
    assert not list(tmp_path.glob(".writing-*"))


@contextmanager
def mounted(folder, options):
    """A small file system of its own at `folder`; skips where this user may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("may not mount a file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("left", [0, 32768])
def test_a_disk_that_fills_up_during_a_run(recipe, tmp_path, monkeypatch, left):
    """Really full: not a byte for the metrics, or just too little for a checkpoint."""
    (tmp_path / "filler.py").write_text(FILLER)
    settings = [rewards_override(tmp_path / "filler.py", "filler"), *ONE_CALL_PER_STEP]
    with mounted(tmp_path / "small", "size=16m") as disk:
        monkeypatch.setenv("SURVIVE_FILL", f"{disk}:{left}")
        error, _ = run_here(recipe, disk / "run", *settings)
        assert isinstance(error, MarbleError), error
        assert "No space left on device" in str(error) and "\n" not in str(error)
        good, passed_over = newest_complete(disk / "run" / "checkpoints")
        assert good.name == "step-000002" and not passed_over
        (disk / "ballast").unlink()
        monkeypatch.setenv("SURVIVE_FILL", f"{tmp_path}:0")
        (tmp_path / "filler.py").write_text(FILLER.replace("calls == 3", "False"))
        outcome, _ = run_here(disk / "run" / "config.yaml", disk / "run", resume=True)
        assert outcome.finished
        run_here(recipe, tmp_path / "unbroken", *settings)
        assert_same_run(tmp_path / "unbroken", disk / "run")


@pytest.mark.slow
def test_a_full_disk_stops_all_processes(recipe, tmp_path):
    with mounted(tmp_path / "small", "size=16m") as disk:
        script = FILLER.replace('os.environ["SURVIVE_FILL"]', f"'{disk}:0'")
        (tmp_path / "filler.py").write_text(script)
        changes = [rewards_override(tmp_path / "filler.py", "filler"), *ONE_CALL_PER_STEP]
        statuses = run_processes(2, recipe, disk / "run", *changes)
        assert statuses == [2, 2]
        good, passed_over = newest_complete(disk / "run" / "checkpoints")
        assert good.name == "step-000002" and not passed_over


def test_a_folder_that_cannot_be_written(recipe, finished, tmp_path):
    (tmp_path / "file").write_text("")
    error, _ = run_here(recipe, tmp_path / "file" / "run")
    assert isinstance(error, MarbleError)
    assert "cannot write there (Not a directory)" in str(error) and "\n" not in str(error)
    with mounted(tmp_path / "readonly", "size=8m") as disk:
        shutil.copytree(finished, disk / "run")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for resume, out in ((True, disk / "run"), (False, disk / "new")):
            error, _ = run_here(finished / "config.yaml", out, resume=resume)
            assert isinstance(error, MarbleError)
            assert "cannot write there (Read-only file system)" in str(error)


WAITING = """
import time
from pathlib import Path

def waits(images, prompts, metadata):
    while Path({begun!r}).read_text() and not Path({go!r}).exists():
        time.sleep(0.05)
    return [float(image.float().mean()) for image in images]
"""


def test_two_runs_in_one_folder(recipe, tmp_path):
    """The first one waits after its first step, however long the second takes to be refused."""
    out, said, go = tmp_path / "run", tmp_path / "said", tmp_path / "go"
    script = WAITING.format(begun=str(out / "metrics.jsonl"), go=str(go))
    (tmp_path / "waits.py").write_text(script)
    words = ("train.steps=8", rewards_override(tmp_path / "waits.py", "waits"))
    first = spawn(run_to_end, str(recipe), str(out), words)
    wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) > 0, first)
    for args in (["--resume", out], [recipe, "--out", out]):
        said.write_text("")
        second = start_cli(said, "train", *args, "--device", "cpu")
        second.join(300)
        assert second.exitcode == 2
        lines = [line for line in said.read_text().splitlines() if "transformers" not in line]
        assert lines == [f"marble: {out}: another run is writing there; choose another --out"]
    go.touch()
    first.join(300)
    assert first.exitcode == 0
    assert [row["step"] for row in rows(out)] == list(range(1, 9))
    assert final_state(out)[1]["step"] == 8
    error, _ = run_here(recipe, out)
    assert isinstance(error, MarbleError) and "already holds a run" in str(error)


def test_whoever_may_read_one_file_of_a_checkpoint_may_read_all(finished):
    newest = newest_complete(finished / "checkpoints")[0]
    modes = {path.stat().st_mode for path in newest.rglob("*") if path.is_file()}
    assert len(modes) == 1
