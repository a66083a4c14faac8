"""Cells run side by side, go on after a kill, and fail without taking the others along."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from marble.errors import MarbleError
from marble.study import load_study, run_study
from marble.study.plan import TRAINERS
from marble.study.runner import _environment, finished

FAKE = (str(Path(__file__).parent / "_trainer.py"),)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setitem(TRAINERS, "marble", FAKE)

    def make(cells, seeds="[0]", steps=3, pause=0.01):
        file = tmp_path / "mine.yaml"
        file.write_text(
            f"seeds: {seeds}\ncommon: {{train.steps: {steps}, optim.lr: {pause}}}\ncells: {cells}"
        )
        return load_study(file)

    return make


def starts(folder):
    lines = (folder / "steps.txt").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("start")]


def test_runs_what_is_missing_and_keeps_what_is_needed(tmp_path, study):
    said = []
    plan = study("{a: {}, b: {}}", seeds="[0, 1]")
    assert run_study(plan, tmp_path / "out", say=said.append) == []
    assert all(finished(tmp_path / "out" / cell.folder) for cell in plan.cells)
    assert not (tmp_path / "out" / "a-seed0" / "checkpoints").exists()
    assert not (tmp_path / "out" / "a-seed0" / "samples").exists()
    assert run_study(plan, tmp_path / "out", say=said.append) == []
    assert starts(tmp_path / "out" / "a-seed0") == ["0"]  # not run again
    assert said[-1] == "mine: 4 runs, 4 done already"


def test_two_jobs_run_at_the_same_time(tmp_path, study):
    run_study(study("{a: {}, b: {}}", pause=0.3), tmp_path, jobs=2, say=lambda _: None)
    times = []
    for name in ("a-seed0", "b-seed0"):
        lines = (tmp_path / name / "steps.txt").read_text().splitlines()
        times.append([float(line.split()[-1]) for line in lines])
    assert max(t[0] for t in times) < min(t[-1] for t in times)


def test_a_failing_cell_is_reported_and_the_others_go_on(tmp_path, study):
    plan = study("{a: {}, bad: {balance.method: fixed}, c: {}}")
    [failure] = run_study(plan, tmp_path, say=lambda _: None)
    assert (failure.folder, failure.said) == ("bad-seed0", "marble: this cell is broken")
    assert finished(tmp_path / "a-seed0") and finished(tmp_path / "c-seed0")
    # Tried again, from its checkpoint.
    assert len(run_study(plan, tmp_path, say=lambda _: None)) == 1
    assert starts(tmp_path / "bad-seed0") == ["0", "1"]


def test_a_cell_that_was_killed_goes_on_from_its_checkpoint(tmp_path, study):
    plan = study("{a: {}}", steps=8, pause=0.2)
    thread = threading.Thread(target=lambda: run_study(plan, tmp_path, say=lambda _: None))
    thread.start()
    latest = tmp_path / "a-seed0" / "checkpoints" / "latest"
    while not latest.exists() or int(latest.read_text() or 0) < 2:
        time.sleep(0.02)
    os.kill(int((tmp_path / "a-seed0" / "pid.txt").read_text()), signal.SIGKILL)
    thread.join()
    assert not finished(tmp_path / "a-seed0")
    assert run_study(plan, tmp_path, say=lambda _: None) == []
    first, second = starts(tmp_path / "a-seed0")
    assert first == "0" and int(second) >= 2 and finished(tmp_path / "a-seed0")


def test_a_signal_stops_the_study_and_its_cells(tmp_path):
    """In a process of its own: running cells end by themselves, no new one begins."""
    file = tmp_path / "mine.yaml"
    file.write_text("common: {train.steps: 50, optim.lr: 0.2}\ncells: {a: {}, b: {}}")
    code = (
        "from pathlib import Path\n"
        "from marble.study import load_study, run_study\n"
        "from marble.study.plan import TRAINERS\n"
        f"TRAINERS['marble'] = {FAKE!r}\n"
        f"run_study(load_study(Path({str(file)!r})), Path({str(tmp_path / 'out')!r}))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    latest = tmp_path / "out" / "a-seed0" / "checkpoints" / "latest"
    while not latest.exists():
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert "stopped a-seed0" in said and "run the study again" in said
    assert not (tmp_path / "out" / "b-seed0").exists()


def test_cells_run_seed_by_seed(tmp_path, study):
    said = []
    plan = study("{a: {}, b: {}}", seeds="[1, 0]")
    run_study(plan, tmp_path, say=said.append)
    done = [line.split()[1] for line in said if line.startswith("done")]
    assert done == ["a-seed0", "b-seed0", "a-seed1", "b-seed1"]


def test_the_base_of_a_setting_is_evaluated_once(tmp_path, study):
    plan = study("{a: {}, b: {}}\nsettings: {one: {}, two: {}}")
    run_study(plan, tmp_path, say=lambda _: None)
    asked = {
        cell.folder: json.loads((tmp_path / cell.folder / "asked.json").read_text())
        for cell in plan.cells
    }
    assert "eval.base" not in asked["one-a-seed0"] and "eval.base" not in asked["two-a-seed0"]
    assert asked["one-b-seed0"]["eval.base"] == str(tmp_path / "one-a-seed0")
    assert asked["two-b-seed0"]["eval.base"] == str(tmp_path / "two-a-seed0")


def test_a_cell_is_a_process_with_its_own_environment_and_log(tmp_path, study, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    forkserver._forkserver._stop()  # of another test, which preloads something else
    run_study(study("{a: {}, b: {}}"), tmp_path, say=lambda _: None)
    pids = {(tmp_path / name / "pid.txt").read_text() for name in ("a-seed0", "b-seed0")}
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert (tmp_path / "a-seed0" / "log.txt").read_text() == "3 threads\n"
    # The trainer itself imports none of it.
    assert {"torch", "diffusers"} <= set(
        (tmp_path / "a-seed0" / "imported.txt").read_text().split()
    )


def test_numpy_has_the_cells_threads_too(tmp_path):
    """It counts them when it is imported, which the process that cells are forked from does."""
    shown = tmp_path / "shown.txt"
    (tmp_path / "show.py").write_text(
        "import os\nfrom pathlib import Path\n"
        "parent = Path(f'/proc/{os.getppid()}/environ').read_bytes().split(b'\\0')\n"
        f"Path({str(shown)!r}).write_text(str([e for e in parent if e.startswith(b'OMP_')]))\n"
    )
    code = (
        "import os\nfrom pathlib import Path\nfrom marble.study.children import Children\n"
        "with Children(threads=3) as children:\n"
        f"    here = Path({str(tmp_path)!r})\n"
        "    children.run([str(here / 'show.py')], here / 'log', {})\n"
        "assert 'OMP_NUM_THREADS' not in os.environ\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert shown.read_text() == "[b'OMP_NUM_THREADS=3']"


def test_a_folder_in_use_is_left_alone(tmp_path, study):
    folder = tmp_path / "a-seed0"
    folder.mkdir()
    (folder / "precious.txt").write_text("of a run that goes on")
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        [failure] = run_study(study("{a: {}}"), tmp_path, say=lambda _: None)
    assert "another process" in failure.said and (folder / "precious.txt").is_file()


def test_runs_of_other_settings_are_not_mixed_in(tmp_path, study):
    run_study(study("{a: {}}"), tmp_path, say=lambda _: None)
    with pytest.raises(MarbleError, match="other settings"):
        run_study(study("{a: {}}", steps=4), tmp_path, say=lambda _: None)


def test_cores_and_gpus_are_shared_out(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [_environment(s, 4, 2)["CUDA_VISIBLE_DEVICES"] for s in range(4)] == ["0", "1", "0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in _environment(0, 4, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert _environment(1, 2, 2)["CUDA_VISIBLE_DEVICES"] == "7"
    assert int(_environment(0, 64, 1)["OMP_NUM_THREADS"]) == 1
