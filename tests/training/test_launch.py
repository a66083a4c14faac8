"""Several processes, launched from the command line. That they do what one does: survive tests."""

import json
import os
import subprocess
import sys


def test_two_processes(toy, tmp_path):
    """What `accelerate launch` runs for several GPUs is torch's launcher; it knows CPUs as well."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc_per_node", "2", "-m", "marble", "train", str(toy.recipe_file)]
    done = subprocess.run(
        [*launch, "train.steps=1", "--device", "cpu", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("held-out, base") == 1  # only the main process speaks
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 1
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["processes"] == 2
