"""Reading on several threads: the same scores on any number, in order, with errors passed on."""

import os
import threading

import numpy as np
import pytest
import torch

from marble.rewards import load
from marble.rewards.ocr.workers import Workers


def test_results_come_in_order_from_several_threads():
    meet = threading.Barrier(3, timeout=30)

    def work(part):
        meet.wait()  # passes only if three run at the same time
        return part, threading.get_ident()

    found = Workers(3).map(work, range(6))
    assert [part for part, _ in found] == list(range(6))
    assert len({thread for _, thread in found}) == 3


@pytest.mark.parametrize(("count", "parts"), [(1, 5), (4, 1), (4, 0)])
def test_no_thread_is_started_for_nothing(count, parts):
    workers = Workers(count)
    found = workers.map(lambda part: threading.get_ident(), range(parts))
    assert found == [threading.get_ident()] * parts and workers._pool is None


def test_an_error_reaches_the_caller_and_the_workers_live_on():
    workers = Workers(2)
    with pytest.raises(ZeroDivisionError):
        workers.map(lambda part: 1 // part, [1, 0, 1])
    assert workers.map(lambda part: part + 1, [1, 2]) == [2, 3]


def test_a_forked_process_starts_its_own():
    """Threads do not survive a fork: a pool that was used before would wait for ever."""
    workers = Workers(2)
    workers.map(abs, [1, 2])
    child = os.fork()
    if child == 0:
        os._exit(0 if workers.map(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_scores_do_not_depend_on_the_threads():
    torch.manual_seed(0)
    images = torch.randint(0, 256, (21, 3, 32, 32), dtype=torch.uint8)
    prompts, metadata = ['a sign that says "TEA"'] * 21, [{}] * 21
    scores = [
        load("ocr", engine="ppocr-rec", threads=threads, dense=True).score(
            images, prompts, metadata
        )
        for threads in (1, 3)
    ]
    np.testing.assert_array_equal(*scores)
    assert len(set(scores[0])) == 21
