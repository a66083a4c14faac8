"""Keep a page fresh while its runs are going."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from marble.report.folder import read_run
from marble.report.page import write

GOING = ("running", "unfinished")
_WATCHED = ("metrics.jsonl", "evals.jsonl", "run.json")


def watch(
    runs: Sequence[Path | str],
    out: Path | str,
    every_s: float = 30,
    *,
    on_write: Callable[[Path], None] = lambda page: None,
) -> Path:
    """Write the page, and again whenever a run has moved on; returns when no run is going.

    While a run goes, the open page reloads itself; the last one written stands still.
    """
    seen: list[float] | None = None
    while True:  # until no run is going, or Ctrl-C
        now, going = _stamps(runs), _any_going(runs)
        if now != seen or not going:
            page = write(runs, out, refresh_s=max(5, round(every_s)) if going else None)
            on_write(page)
            seen = now
            if not going:
                return page
        time.sleep(every_s)


def _stamps(runs: Sequence[Path | str]) -> list[float]:
    files = [Path(run) / name for run in runs for name in _WATCHED]
    return [f.stat().st_mtime if f.is_file() else 0.0 for f in files]


def _any_going(runs: Sequence[Path | str]) -> bool:
    return any(read_run(Path(run)).status in GOING for run in runs)
