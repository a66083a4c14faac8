"""Parts of a batch on several threads, each with an onnxruntime session's single-threaded run.

A network for a small picture has too little work in a layer to share it out: threads inside a layer
mostly wait for each other, and 16 of them are hardly faster than 4. Pictures need not wait for each
other. What a part gives does not depend on how many threads there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """`count` threads, started when they are first needed, and again in a forked process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def map(self, function: Callable[[Any], T], parts: Sequence[Any]) -> list[T]:
        """The function's results in the order of the parts; it is called in several threads."""
        if self.count == 1 or len(parts) < 2:
            return [function(part) for part in parts]
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self.count, thread_name_prefix="ocr")
        return list(self._pool[1].map(function, parts))
