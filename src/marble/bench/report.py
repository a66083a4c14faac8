"""What a benchmark knows so far: written after every part, with the reason where one failed."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marble.bench.timing import clean, describe


class Report:
    """What is known so far, in the file after every part; a part that fails leaves its reason."""

    def __init__(self, out: Path | None, say: Callable[[str], None]) -> None:
        self.found: dict[str, Any] = {"complete": False, "failures": {}}
        self._out, self._say = out, say
        self._started = time.perf_counter()

    def note(self, **more: Any) -> None:
        for key, value in more.items():
            if isinstance(value, dict) and isinstance(self.found.get(key), dict):
                self.found[key] |= value
            else:
                self.found[key] = value
        self.found["seconds"] = round(time.perf_counter() - self._started, 1)
        if self._out is not None:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text(json.dumps(self.found, indent=2) + "\n")

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._say(f"{time.perf_counter() - self._started:5.0f} s  {name}")
        try:
            yield
        except Exception as error:
            where = traceback.format_exc().strip().splitlines()[-8:]
            self.note(failures={name: [describe(error), *where]})
        clean()
