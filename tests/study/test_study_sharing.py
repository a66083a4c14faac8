"""Runs of several studies in one queue, for so long; the GPU's service ends with them."""

import os
import threading
import time
from pathlib import Path

import pytest

from marble.study import load_study, run_studies
from marble.study.runner import _after
from marble.study.sharing import BLOCKING, CONTROL, DRIVER, LOG, PIPE, shared_gpu, wait_asleep


@pytest.fixture
def control(tmp_path, monkeypatch):
    """A stand-in for the service's control program, which writes down what it is told."""
    folder, told = tmp_path / "bin", tmp_path / "told.txt"
    folder.mkdir()
    program = folder / CONTROL
    program.write_text(
        f'#!/bin/sh\necho "$* $(cat) {{${PIPE}}}" | sed "s/[{{}}]//g" >> {told}\nexit ${{RC:-0}}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.setattr("marble.study.sharing.USUAL", tmp_path / "none")
    return told


def test_the_service_runs_as_long_as_the_runs_do(control):
    said = []
    with shared_gpu(4, "cuda", said.append) as places:
        assert set(places) == {PIPE, LOG} and all(Path(p).is_dir() for p in places.values())
        assert control.read_text().split() == ["-d", places[PIPE]]
    assert control.read_text().split()[2:] == ["quit", places[PIPE]]
    assert not Path(places[PIPE]).exists()
    assert said == ["runs share the GPU by CUDA's multi-process service"]


@pytest.mark.parametrize(
    "jobs, device, own", [(1, "cuda", False), (4, "cpu", False), (4, None, True)]
)
def test_where_it_is_not_asked_for(control, monkeypatch, jobs, device, own):
    if own:
        monkeypatch.setenv(PIPE, "/somewhere")
    with shared_gpu(jobs, device, print) as places:
        assert places == {}
    assert not control.exists()


def test_a_service_that_does_not_start_is_told(control, monkeypatch):
    monkeypatch.setenv("RC", "1")
    said = []
    with shared_gpu(4, None, said.append) as places:
        assert places == {}
    assert len(said) == 1 and "take turns" in said[0]


def test_a_service_that_runs_already_is_left_alone(control, monkeypatch, tmp_path):
    monkeypatch.setattr("marble.study.sharing.USUAL", tmp_path)
    said = []
    with shared_gpu(4, None, said.append) as places:
        assert places == {}
    assert control.read_text().split() == ["get_server_list"]
    assert said == ["runs share the GPU by the multi-process service that runs here already"]


def test_what_an_ended_service_left_is_not_taken_for_one(control, monkeypatch, tmp_path):
    """Its folder stays; runs that trusted it would take turns, twice as slow."""
    monkeypatch.setattr("marble.study.sharing.USUAL", tmp_path)
    program = tmp_path / "bin" / CONTROL
    dead = '[ -z "$CUDA_MPS_PIPE_DIRECTORY" ] && exit 1\n'
    program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{dead}"))
    with shared_gpu(4, None, print) as places:
        assert control.read_text().split() == ["-d", places[PIPE]]


class Driver:
    """CUDA's, with two GPUs; 0 means that a call did what it should."""

    def __init__(self, error=0):
        self.error, self.flags, self.ready = error, {}, False

    def cuInit(self, flags):
        self.ready = True
        return self.error

    def cuDeviceGetCount(self, at):
        at._obj.value = 2
        return 0 if self.ready else 3

    def cuDevicePrimaryCtxSetFlags(self, gpu, flags):
        self.flags[gpu] = flags
        return 0


def test_threads_sleep_while_they_wait_for_a_gpu(monkeypatch):
    driver = Driver()
    monkeypatch.setattr("ctypes.CDLL", {DRIVER: driver}.__getitem__)
    assert wait_asleep() and driver.flags == {0: BLOCKING, 1: BLOCKING}


def test_a_machine_without_a_gpu_is_left_as_it_is(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert not wait_asleep()
    driver = Driver(error=100)  # a driver, but no GPU
    monkeypatch.setattr("ctypes.CDLL", lambda name: driver)
    assert not wait_asleep() and not driver.flags
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not wait_asleep()


@pytest.mark.parametrize("jobs", [1, 2])
def test_only_runs_side_by_side_do(two, monkeypatch, jobs, tmp_path):
    """Each in its own process, before it begins."""
    monkeypatch.setattr("marble.study.children.wait_asleep", (tmp_path / "asleep").touch)
    context = __import__("multiprocessing").get_context("fork")
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: context)
    monkeypatch.setattr(context, "set_forkserver_preload", print, raising=False)
    run_studies(two(0), jobs=jobs, device="cpu", say=print)
    assert (tmp_path / "asleep").exists() == (jobs > 1)


SLOW = """
import json, sys, time
from pathlib import Path
out = Path(sys.argv[sys.argv.index("--out") + 1])
time.sleep({seconds})
(out / "run.json").write_text(json.dumps({{"status": "finished"}}))
(out / "env.txt").write_text(__import__("os").environ.get("{pipe}", ""))
"""


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two studies of two cells each, by a program that waits and is done."""

    def make(seconds):
        program = tmp_path / "wait.py"
        program.write_text(SLOW.format(seconds=seconds, pipe=PIPE))
        monkeypatch.setitem(__import__("marble.study.plan").study.plan.TRAINERS, "toy", [program])
        plans = []
        for name in ("first", "second"):
            file = tmp_path / f"{name}.yaml"
            file.write_text(
                "recipe: studio-fast\ntrainer: toy\nseeds: [0]\n"
                "cells: {a: {optim.lr: 1e-3}, b: {optim.lr: 1e-4}}\n"
            )
            plans.append((load_study(file), tmp_path / "runs" / name))
        return plans

    return make


def test_runs_of_two_studies_wait_in_one_queue(two, control):
    said = []
    failures = run_studies(two(0), jobs=3, device="cuda", say=said.append)
    assert failures == [[], []]
    done = sorted(line.split()[1] for line in said if line.startswith("done"))
    assert done == ["first/a-seed0", "first/b-seed0", "second/a-seed0", "second/b-seed0"]
    started = control.read_text().split()[1]
    for _, out in two(0):
        assert (out / "a-seed0" / "env.txt").read_text() == started


def test_after_its_minutes_no_run_begins(two):
    said, began = [], time.monotonic()
    failures = run_studies(two(60), jobs=1, device="cpu", minutes=0.05, say=said.append)
    assert time.monotonic() - began < 40
    assert failures == [[], []]
    assert "stopped first/a-seed0" in said and not any(line.startswith("done") for line in said)
    assert said[-1] == "stopped; run the study again to go on"


def test_any_number_of_minutes_can_be_waited_for(monkeypatch):
    broken = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    with _after(float("inf"), lambda: broken.append("stopped")):
        time.sleep(0.2)
    assert not broken
