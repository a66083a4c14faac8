"""Several processes, launched from the command line. That they do what one does: survive tests."""

import json
import os
import subprocess
import sys

import pytest


def launched(processes, *words):
    """What `accelerate launch` runs for several GPUs is torch's launcher; it knows CPUs as well."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc_per_node", str(processes), "-m", "marble", *map(str, words)]
    done = subprocess.run(
        [*launch, "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_two_processes(toy, tmp_path):
    done = launched(2, "train", toy.recipe_file, "train.steps=1", "--out", tmp_path / "run")
    assert done.stderr.count("held-out, base") == 1  # only the main process speaks
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 1
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["processes"] == 2


@pytest.mark.slow
def test_an_evaluation_is_the_same_on_one_and_on_two_processes_and_told_once(toy):
    words = ["eval", "base", "--recipe", toy.recipe_file, "--json"]
    one, two = (json.loads(launched(n, *words).stdout) for n in (1, 2))  # one object each
    assert one["rewards"] == two["rewards"] and one["by_source"] == two["by_source"]
