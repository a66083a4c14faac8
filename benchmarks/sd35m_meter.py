"""Seconds and peak device memory of the phases of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch


class Meter:
    """Seconds and peak memory of named phases; a phase inside another counts in both."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.phases: dict[str, list[dict[str, float]]] = {}
        self._peaks: list[tuple[int, int]] = []
        """(allocated, reserved) bytes of the phases that are open, the outermost first."""

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._mark()
        self._peaks.append((0, 0))
        started = time.perf_counter()
        try:
            yield
        finally:
            self._mark()
            peak = self._peaks.pop()
            if self._peaks:  # the outer phase has seen this peak too
                self._peaks[-1] = _higher(self._peaks[-1], peak)
            entry = {"seconds": time.perf_counter() - started}
            if self.cuda:
                entry["peak_gb"], entry["reserved_gb"] = peak[0] / 1e9, peak[1] / 1e9
                entry["left_gb"] = torch.cuda.memory_allocated() / 1e9
            self.phases.setdefault(name, []).append(entry)

    def _mark(self) -> None:
        """Books the peak since the last mark to the phase that is running, and starts anew."""
        if not self.cuda:
            return
        torch.cuda.synchronize()
        if self._peaks:
            seen = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            self._peaks[-1] = _higher(self._peaks[-1], seen)
        torch.cuda.reset_peak_memory_stats()

    def around(self, owner: Any, attribute: str, name: str | Callable[..., str]) -> Any:
        """A patch that books every call of a method as a phase."""
        original = getattr(owner, attribute)
        meter = self

        def measured(*args: Any, **kwargs: Any) -> Any:
            with meter(name if isinstance(name, str) else name(*args, **kwargs)):
                return original(*args, **kwargs)

        return patch.object(owner, attribute, measured)

    def summary(self) -> dict[str, dict[str, Any]]:
        out = {}
        for name, calls in self.phases.items():
            seconds = [call["seconds"] for call in calls]
            out[name] = {
                "calls": len(calls),
                "seconds_total": round(sum(seconds), 3),
                "seconds_median": round(sorted(seconds)[len(seconds) // 2], 4),
            }
            if self.cuda:
                for key in ("peak_gb", "reserved_gb"):
                    out[name][key] = round(max(call[key] for call in calls), 3)
                out[name]["left_gb"] = round(calls[-1]["left_gb"], 3)
        return out


def _higher(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), max(a[1], b[1])
