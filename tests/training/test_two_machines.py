"""A run on two machines: the same run as on one, whatever becomes of a machine or the shared disk.

The machines are network namespaces with addresses of their own (see `_machines.py`), the launcher
is torchrun, the collectives are gloo's. Slow: minutes.
"""

import json
import os
import time

import pytest
from _machines import disk, freeze, possible, thaw, two_machines
from _survive import assert_same_run, make_world, rewards_override, rows, run_processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not possible(), reason="needs root and `ip netns`"),
]
STEPS = "train.steps=6"
PAUSING = '''
import os, random, time
import numpy as np
import torch

calls = 0


def pausing(images, prompts, metadata):
    """In its sixth batch the second process waits, once: the moment to lose it in mid-epoch.

    Draws from the global generators, which must go on where they were.
    """
    global calls
    calls += 1
    mark = os.environ.get("SURVIVE_MARK")
    if mark and os.environ["RANK"] == "1" and calls == 6 and not os.path.exists(mark):
        open(mark, "w").close()
        time.sleep(20)
    drawn = torch.rand(len(images)) + torch.from_numpy(np.random.randn(len(images)))
    means = images[:, 0].float().mean((1, 2)).div(255)
    return [float(m) + 0.01 * (float(d) + random.gauss(0, 1)) for m, d in zip(means, drawn)]
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    recipe = make_world(tmp_path_factory.mktemp("machines"))
    (recipe.parent / "pausing.py").write_text(PAUSING)
    words = [rewards_override(recipe.parent / "pausing.py", "pausing"), STEPS]
    return recipe, [*words, "eval.every=0"]


@pytest.fixture(scope="module")
def one_machine(world, tmp_path_factory):
    """The same run by two processes of one machine."""
    recipe, words = world
    out = tmp_path_factory.mktemp("one") / "run"
    assert run_processes(2, recipe, out, *words) == [0, 0]
    return out


def wait_for(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_machines_are_one(world, one_machine, tmp_path):
    recipe, words = world
    out = tmp_path / "run"
    with two_machines() as machines:
        for machine in machines:
            machine.torchrun(tmp_path / "said", "train", recipe, *words, "--out", out)
        assert [machine.wait() for machine in machines] == [0, 0], (tmp_path / "said").read_text()
    assert json.loads((out / "environment.json").read_text())["processes"] == 2
    assert_same_run(one_machine, out)


def test_a_machine_lost_in_mid_epoch(world, one_machine, tmp_path, monkeypatch):
    """The launcher that is left starts its process again as soon as the other machine is back."""
    recipe, words = world
    out, mark = tmp_path / "run", tmp_path / "mark"
    monkeypatch.setenv("SURVIVE_MARK", str(mark))
    said = [tmp_path / "first", tmp_path / "second"]
    with two_machines() as (first, second):
        for machine, file in zip((first, second), said):
            machine.torchrun(file, "train", recipe, *words, "--out", out, restarts=3)
        wait_for(mark.exists)
        before = len(rows(out))
        assert 0 < before < 6
        second.lose()
        time.sleep(5)
        second.back()
        second.torchrun(said[1], "train", recipe, *words, "--out", out, restarts=3)
        assert [first.wait(), second.wait()] == [0, 0], "".join(f.read_text() for f in said)
    assert_same_run(one_machine, out)
    told = said[0].read_text() + said[1].read_text()
    assert "resuming after step" in told
    assert "marble: another process of the run is gone" in told.replace("process 1: ", "")


def test_the_shared_disk_is_out_of_reach_for_a_minute(world, one_machine, tmp_path):
    """A disk that does not answer, as a hard NFS mount: the run waits, and ends as ever."""
    recipe, words = world
    with disk(tmp_path / "shared") as shared, two_machines() as machines:
        out = shared / "run"
        for machine in machines:
            machine.torchrun(tmp_path / "said", "train", recipe, *words, "--out", out)
        wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) >= 2)
        freeze(shared)
        before = len(rows(out))
        time.sleep(60)
        assert len(rows(out)) <= before + 1
        thaw(shared)
        assert [machine.wait() for machine in machines] == [0, 0], (tmp_path / "said").read_text()
        assert_same_run(one_machine, out)


def test_the_shared_folder_is_gone(world, tmp_path):
    """A mount that is lost: one line, status 2, and no second folder begun in its place."""
    recipe, words = world
    out, said = tmp_path / "shared" / "run", [tmp_path / "first", tmp_path / "second"]
    with two_machines() as machines:
        for machine, file in zip(machines, said):
            machine.torchrun(file, "train", recipe, *words, "train.steps=500", "--out", out)
        wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) >= 2)
        os.rename(tmp_path / "shared", tmp_path / "elsewhere")
        assert all(machine.wait() != 0 for machine in machines)
    assert not out.exists()
    text = "".join(file.read_text() for file in said)
    lines = [line for line in text.splitlines() if line.startswith("marble: ")]
    assert len([line for line in lines if "cannot write" in line]) == 1, text
    assert json.loads((tmp_path / "elsewhere/run/run.json").read_text())["step"] >= 1
