"""One reward behind a queue: requests that wait together are scored together, in one thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marble.rewards.base import RewardLike
from marble.rewards.isolated import Isolated
from marble.rewards.set import RewardSet


@dataclass(frozen=True)
class Item:
    image: torch.Tensor
    prompt: str
    metadata: dict[str, Any]
    group: str | int | None = None
    """Which pictures of the request belong together, for rewards that compare."""


@dataclass(frozen=True)
class _Job:
    items: list[Item]
    answer: asyncio.Future[list[float | None]]


class Batcher:
    """Models are not made for several threads, and small requests waste them: both end here."""

    def __init__(
        self, reward: RewardLike, batch_size: int, gather_s: float, deadline_s: float
    ) -> None:
        self.name, self.range = reward.name, reward.range
        self.batch_size, self.gather_s = batch_size, gather_s
        # A deadline can end the work of a reward in a process of its own, and of no other.
        own = isinstance(reward, Isolated)
        self._rewards = RewardSet([reward], watch=False, deadline_s=deadline_s if own else None)
        self.compares = bool(self._rewards.compares)
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"reward-{reward.name}")
        self._task: asyncio.Task[None] | None = None
        self.seconds, self.images = 0.0, 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._rewards.close()

    async def submit(self, items: list[Item]) -> list[float | None]:
        """The items' scores, None where the reward does not apply; raises what it raises."""
        job = _Job(items, asyncio.get_running_loop().create_future())
        await self._queue.put(job)
        return await job.answer

    async def _work(self) -> None:
        while True:
            jobs = [await self._queue.get()]
            if self.gather_s:
                await asyncio.sleep(self.gather_s)
            count = len(jobs[0].items)
            while count < self.batch_size and not self._queue.empty():
                jobs.append(self._queue.get_nowait())
                count += len(jobs[-1].items)
            # Whoever hung up or ran out of time has cancelled the future: nobody reads the scores.
            waiting = [job for job in jobs if not job.answer.done()]
            if waiting:
                await self._answer(waiting)

    async def _answer(self, jobs: list[_Job]) -> None:
        items = [item for job in jobs for item in job.items]
        try:
            groups = [(n, item.group) for n, job in enumerate(jobs) for item in job.items]
            scores = await self._in_thread(lambda: self._score(items, groups))
        except Exception as error:
            if len(jobs) == 1:
                _settle(jobs[0].answer, error=error)
                return
            for job in jobs:  # one bad request must not fail its neighbours
                if not job.answer.done():
                    await self._answer([job])
            return
        for job in jobs:
            _settle(job.answer, scores[: len(job.items)])
            scores = scores[len(job.items) :]

    async def _in_thread(self, work: Callable[[], list[float | None]]) -> list[float | None]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _score(self, items: list[Item], groups: list[Any]) -> list[float | None]:
        """In the reward's thread. Pictures of one size go together; groups are never split."""
        started = time.perf_counter()
        values = np.full(len(items), np.nan)
        sizes: dict[tuple[int, ...], list[int]] = {}
        for i, item in enumerate(items):
            sizes.setdefault(tuple(item.image.shape), []).append(i)
        for rows in sizes.values():
            step = len(rows) if self.compares else self.batch_size
            for start in range(0, len(rows), step):
                few = rows[start : start + step]
                values[few] = self._rewards.score(
                    torch.stack([items[i].image for i in few]),
                    [items[i].prompt for i in few],
                    [{"source": "remote", **items[i].metadata} for i in few],
                    [groups[i] for i in few],
                )[0]
        self.seconds += time.perf_counter() - started
        self.images += len(items)
        return [None if np.isnan(v) else float(v) for v in values]


def _settle(
    answer: asyncio.Future[list[float | None]],
    scores: list[float | None] | None = None,
    error: Exception | None = None,
) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(scores or [])
