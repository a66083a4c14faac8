"""The launch script for several nodes, with stand-ins for the cluster's commands."""

import itertools
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"
STANDINS = {
    # Writes on when the reader of the first line may have gone.
    "scontrol": 'if [ "$1" = show ]; then echo node1; sleep 0.05; for n in {2..9}; do echo node$n; '
    'done; else echo "scontrol $*"; fi',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; SLURM_NODEID=1 exec "$@"',
    "accelerate": 'printf "%s\\n" "$@"',
}


@pytest.fixture
def launch(tmp_path):
    for name, body in STANDINS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    cluster = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "70123", "SLURM_NNODES": "2"}
    path = f"{tmp_path}:{os.environ['PATH']}"

    def run(*args):
        return subprocess.run(
            ["bash", SCRIPT, *map(str, args)],
            env={**os.environ, **cluster, "SLURM_GPUS_ON_NODE": "4", "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()

    return run


def test_a_new_run_starts_and_one_that_is_there_goes_on(launch, tmp_path):
    run = tmp_path / "a run"  # with a blank, as folders have them
    run.mkdir()
    (run / "run.json").write_text('{"status": "finished"}')
    words = launch("sd35m-5rewards", run, "optim.lr=1e-4")
    options = dict(itertools.pairwise(words))
    assert options["--num_processes"] == "8" and options["--num_machines"] == "2"
    assert options["--machine_rank"] == "1" and options["--main_process_ip"] == "node1"
    work = words[words.index("-m") :]
    assert work[:4] == ["-m", "marble", "train", "sd35m-5rewards"]
    assert work[4:] == ["train.max_hours=23", "optim.lr=1e-4", "--out", str(run)]
    (run / "config.yaml").write_text("")
    (run / "run.json").write_text('{\n "status": "interrupted"\n}')
    words = launch("sd35m-5rewards", run)
    assert words[words.index("train") + 1 : -1] == ["--resume", str(run), "train.max_hours=23"]
    assert words[-1] == "scontrol requeue 70123"
