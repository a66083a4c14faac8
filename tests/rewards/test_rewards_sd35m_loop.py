"""The full-size benchmark's own code: on tiny models, and its bookkeeping on a pretended GPU."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from marble.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_sd35m_loop_runs_resumes_and_exports(tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "sd35m_loop.py"), "--tiny", "--out", out]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(out.read_text())
    assert [row["step"] for row in result["steps"]] == [1, 2, 3, 4, 5]
    assert ["time/refresh" in row for row in result["steps"]] == [True, False, False, True, False]
    assert result["phases"]["optimiser step, refresh"]["calls"] == 2
    assert result["phases"]["run: resume, 2 more steps"]["calls"] == 1
    assert result["complete"] and result["memory"] is None
    assert result["setup"]["recipe"]["model"]["path"] == "random weights"
    assert tempfile.gettempdir() not in out.read_text()
    assert set(result["rewards_alone"]) >= {"geneval", "ocr", "pickscore", "clipscore", "hpsv2"}
    changes = result["score_changes"]
    assert len(changes) == 8 and max(found["alone"] for found in changes.values()) <= 1e-4
    exported = result["exported_lora"]
    assert exported["pictures_finite"]
    assert exported["pictures_change_with_lora"] > 0
    assert exported["pictures_change_after_unloading"] == 0


class PretendedGPU:
    """The counters of `torch.cuda` that the benchmark reads, moved by hand (in GB)."""

    def __init__(self, monkeypatch):
        self.now = self.peak = self.reserved = 0.0
        gb = 1e9
        for name, answer in {
            "synchronize": lambda: None,
            "memory_allocated": lambda: self.now * gb,
            "max_memory_allocated": lambda: self.peak * gb,
            "memory_reserved": lambda: self.reserved * gb,
            "max_memory_reserved": lambda: self.reserved * gb,
            "reset_peak_memory_stats": self.reset,
            "mem_get_info": lambda: (int((140 - self.reserved - 0.6) * gb), int(140 * gb)),
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def reset(self):
        self.peak = self.now

    def use(self, peak, then):
        self.peak, self.now = max(self.peak, peak), then
        self.reserved = max(self.reserved, self.peak)


def test_peaks_are_booked_to_their_phase_and_to_those_around_it(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from sd35m_loop import _memory, show
    from sd35m_meter import Meter

    gpu = PretendedGPU(monkeypatch)
    meter = Meter(torch.device("cuda"))
    with meter("write random weights"):
        gpu.use(30, then=0)
    gpu.reserved = 0  # the cache was emptied
    with meter("run: 3 steps"):
        gpu.use(6, then=5)
        with meter("sample"):
            gpu.use(12, then=5)
        with meter("train"):
            gpu.use(9, then=5)
        gpu.use(7, then=1)
    found = meter.summary()
    peaks = {name: phase["peak_gb"] for name, phase in found.items()}
    assert peaks == {"write random weights": 30, "sample": 12, "train": 9, "run: 3 steps": 12}
    assert found["run: 3 steps"]["left_gb"] == 1
    memory = _memory(meter)
    assert memory == {
        "peak_gb": 12,
        "peak_reserved_gb": 12,
        "cuda_itself_gb": pytest.approx(0.6),
        "peak_on_device_gb": pytest.approx(12.6),
    }
    show({"phases": found, "memory": memory, "seconds": 1.0})


def test_the_ocr_reward_is_cut_to_what_the_machine_has(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import sd35m_loop

    real = importlib.util.find_spec
    for absent, overrides in (
        ((), []),
        (("cv2",), ["rewards.ocr.options.engine=ppocr-rec"]),
        (("rapidocr",), ["rewards.drop=ocr"]),
    ):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda n, absent=absent: None if n in absent else real(n)
        )
        assert sd35m_loop.ocr_overrides() == overrides
        load_recipe(sd35m_loop.RECIPE, overrides)
