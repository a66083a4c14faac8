"""The benchmark of a step on a CPU runs, and its middle variant is bf16 without `models.cpu`."""

import json
from pathlib import Path

import pytest
import torch

from marble.models import cpu
from marble.training.processes import Processes

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cpu_step

    return cpu_step


def test_autocast_alone_has_nothing_of_ours(script):
    processes = Processes("cpu")
    with script.autocast_alone():
        plain = script.build("autocast", "studio-fast", [], processes)
    ours = script.build("bf16", "studio-fast", [], processes)
    for trainer, count in ((plain, 0), (ours, 5)):
        model = trainer.adapter.transformer
        assert trainer.adapter.precision is torch.bfloat16
        assert sum(isinstance(m, cpu.LeanBlock) for m in model.modules()) == count
        trainer.close()
    assert plain.adapter.transformer.proj_out.weight.dtype == torch.float32
    processes.close()


@pytest.mark.slow
def test_it_measures_every_variant(script, tmp_path):
    out = tmp_path / "step.json"
    found = script.main(["--out", str(out), "--recipe", "studio-fast", "--rounds", "1"])
    assert found == json.loads(out.read_text())
    assert set(found["seconds"]) == {"fp32", "autocast", "bf16"}
    assert found["setup"]["pictures"] == 24
    assert all(ratio["cpu"] > 0 for ratio in found["times_as_fast"].values())
