"""Timing, peak memory and profiles of steps that run on a device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[[], Any]
Clear = Callable[[], None]


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(step: Step, device: torch.device) -> tuple[float, float]:
    """(ms until the device is done, ms until the host has queued everything)."""
    sync(device)
    start = time.perf_counter()
    step()
    queued = time.perf_counter()
    sync(device)
    return 1e3 * (time.perf_counter() - start), 1e3 * (queued - start)


def interleaved(
    steps: dict[str, Step], repeats: int, device: torch.device, clear: Clear, warmup: int = 2
) -> dict[str, dict[str, float]]:
    """Medians over rounds in which every step runs once; ``clear`` runs between steps."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for number in range(warmup + repeats):
        for name, step in steps.items():
            result = timed(step, device)
            clear()
            if number >= warmup:
                times[name].append(result)
    return {
        name: {
            "ms": statistics.median(t for t, _ in rounds),
            "ms_min": min(t for t, _ in rounds),
            "ms_max": max(t for t, _ in rounds),
            "host_ms": statistics.median(h for _, h in rounds),
        }
        for name, rounds in times.items()
    }


def peak_bytes(make: Callable[[], Step], device: torch.device, clear: Clear) -> int | None:
    """Peak allocation of two steps in a row, with what ``make`` allocates for them."""
    if device.type != "cuda":
        return None
    clear()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    step = make()
    for _ in range(2):
        step()
    sync(device)
    peak = torch.cuda.max_memory_allocated(device)
    clear()
    return peak


def profile(step: Step, device: torch.device, rows: int = 28) -> None:
    """Prints the costliest operations of a step, on the device and on the host."""
    events = _events(step, device)

    def device_us(event: Any) -> float:
        return float(getattr(event, "self_device_time_total", 0.0))

    def host_us(event: Any) -> float:
        return float(event.self_cpu_time_total)

    for title, cost in (("device", device_us), ("host", host_us)):
        total = sum(cost(e) for e in events)
        print(f"\n{title}: {total / 1e3:.1f} ms in all")
        for event in sorted(events, key=cost, reverse=True)[:rows]:
            if cost(event) > 0:
                print(f"{cost(event) / 1e3:9.2f} ms {event.count:6d} × {event.key[:100]}")


def device_times(step: Step, device: torch.device) -> dict[str, tuple[float, int]]:
    """Kernel → (ms, how often) in one step; on a CPU, its operations."""
    from torch.autograd import DeviceType

    found = {}
    for event in _events(step, device):
        if device.type == "cuda" and event.device_type == DeviceType.CUDA:
            found[event.key] = (event.self_device_time_total / 1e3, event.count)
        elif device.type != "cuda":
            found[event.key] = (event.self_cpu_time_total / 1e3, event.count)
    return found


def _events(step: Step, device: torch.device) -> Any:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with record(activities=activities) as prof:
        timed(step, device)
    return prof.key_averages()
