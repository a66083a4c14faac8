"""A reward that fails as it is told to, and keeps a book of every score that it gave."""

import json
import time
from pathlib import Path

from marble.rewards.base import Reward


class Faulty(Reward):
    """Brightness plus a serial number far behind the comma: no two scores are equal."""

    range = (0.0, 1.0)

    def __init__(self, kind: str, at: int, book: str, name: str = "faulty") -> None:
        self.name, self.kind, self.at, self.book = name, kind, at, Path(book)
        self.batches = self.given = 0
        self.poisoned = False

    def score(self, images, prompts, metadata):
        if len(prompts) > 1:
            self.batches += 1
            self.poisoned = self.batches == self.at
        values = [self._value(image) for image in images]
        if self.poisoned:
            self._fail(values, alone=len(prompts) == 1)
        elif self.batches > self.at:
            self._drift(values)
        with self.book.open("a") as book:
            for prompt, value in zip(prompts, values):
                book.write(json.dumps([prompt, value]) + "\n")
        return values

    def _value(self, image) -> float:
        self.given += 1
        return float(image.float().mean()) / 255 + self.given * 1e-9

    def _fail(self, values, alone: bool) -> None:
        if self.kind == "exception":
            if alone:  # asked one by one, it fails on the first only
                self.poisoned = False
            raise RuntimeError("the scorer has lost its temper")
        if self.kind == "length":
            values.pop()
        if self.kind == "nan":
            values[1] = float("nan")
        if self.kind == "inf":
            values[1] = float("inf")
        if self.kind == "hang":
            self.poisoned = False
            time.sleep(2.0)

    def _drift(self, values) -> None:
        if self.kind == "constant":
            values[:] = [0.5] * len(values)
        if self.kind == "range":
            values[0] = 1.5
        if self.kind == "shift":
            values[:] = [value / 2 for value in values]
