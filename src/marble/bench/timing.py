"""Milliseconds and peak memory of calls on a device."""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[], Any]


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(call: Call, device: torch.device) -> float:
    """Until the device is done."""
    synchronise(device)
    started = time.perf_counter()
    call()
    synchronise(device)
    return 1e3 * (time.perf_counter() - started)


def alternating(
    calls: Mapping[str, Call], repeats: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Medians of rounds in which every call has its turn; `first_ms` is the call that warms it up.

    A call that fails leaves its reason and takes no further part.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    for _ in range(1 + repeats):
        for name, call in calls.items():
            if name not in failed:
                try:
                    times[name].append(milliseconds(call, device))
                except Exception as error:  # out of memory, or a kernel that is not there
                    failed[name] = describe(error)
                    clean()
    return {
        name: {"failed": failed[name]}
        if name in failed
        else {
            "ms": statistics.median(values[1:]),
            "ms_min": min(values[1:]),
            "ms_max": max(values[1:]),
            "first_ms": values[0],
        }
        for name, values in times.items()
    }


def describe(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def clean() -> None:
    """Gives back what a failed or finished call has left."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def peak_gb(call: Call, device: torch.device) -> float | None:
    """Most memory that torch has allocated during a call, with all that was there before."""
    if device.type != "cuda":
        return None
    clean()
    torch.cuda.reset_peak_memory_stats(device)
    call()
    synchronise(device)
    return torch.cuda.max_memory_allocated(device) / 1e9


def host_waits(call: Call, device: torch.device) -> int | None:
    """How often the host waits for the device during a call."""
    if device.type != "cuda":
        return None
    synchronise(device)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchronizing CUDA" in str(w.message) for w in caught)


def matmul_tflops(device: torch.device) -> float:
    """What a plain matrix product reaches: bf16 on a GPU, fp32 on a CPU."""
    cuda = device.type == "cuda"
    side = 8192 if cuda else 512
    dtype = torch.bfloat16 if cuda else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    calls = 10

    def products() -> None:
        for _ in range(calls):
            a @ b

    products()
    best = min(milliseconds(products, device) for _ in range(3)) / calls
    return 2 * side**3 / best / 1e9
