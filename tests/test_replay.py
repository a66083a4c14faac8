"""Replayed functions: the numbers of the functions themselves; few sizes, and no surprises."""

import threading

import torch

from marble.replay import MOST, Replayed


def tape(compute):
    results = compute()

    def replay():
        for place, value in zip(results, compute()):
            place.copy_(value)

    return replay, results


def two(x, y):
    return x + y, x * y


def test_a_function_of_several_tensors_with_several_results():
    run, kept = Replayed(two, "this", record=tape), []
    for seed in range(4):
        torch.manual_seed(seed)
        x, y = torch.randn(3, 2), torch.randn(3, 2)
        kept.append((run(x, y), two(x, y)))
    for found, wanted in kept:
        assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    assert run.replayed == 3


def test_a_function_has_run_in_the_thread_that_records_it():
    """Libraries make their handles in a thread's first call, which cannot be recorded."""
    calls, recorded, found = [], [], []

    def compute(x):
        calls.append(threading.current_thread().name)
        return (x + 1,)

    def record(inner):
        recorded.append(list(calls))
        return tape(inner)

    run, x = Replayed(compute, "this", record=record), torch.ones(2)
    for name in ("first", "second", "third"):
        thread = threading.Thread(target=lambda: found.append(run(x)[0]), name=name)
        thread.start()
        thread.join()
    assert recorded == [["first", "second"]]
    assert len(found) == 3 and all(torch.equal(one, x + 1) for one in found)


def test_so_many_sizes_are_recorded_and_no_more():
    run = Replayed(two, "this", record=tape)
    for _ in range(3):
        for n in range(1, MOST + 4):
            x = torch.randn(n)
            assert all(torch.equal(a, b) for a, b in zip(run(x, x), two(x, x)))
    assert run.replayed == 2 * MOST


def test_weights_may_change_in_place():
    weight = torch.ones(2)
    run = Replayed(lambda x: (x * weight,), "this", record=tape)
    x = torch.tensor([2.0, 3.0])
    for _ in range(3):
        run(x)
    weight.mul_(10)
    assert torch.equal(run(x)[0], torch.tensor([20.0, 30.0]))


def test_what_cannot_be_recorded_is_told_once(capsys):
    def refuse(compute):
        raise RuntimeError("not permitted\nwhile capturing")

    run = Replayed(two, "the detector", record=refuse)
    x = torch.ones(2)
    for _ in range(4):
        assert torch.equal(run(x, x)[0], 2 * x)
    assert capsys.readouterr().err == (
        "marble: the detector goes on without CUDA graphs (not permitted)\n"
    )


def test_nothing_is_recorded_unless_a_small_model_draws(monkeypatch):
    from marble import replay

    made = []
    monkeypatch.setattr(replay, "record_cuda", lambda compute: made.append(1) or tape(compute))
    run, x = Replayed(two, "this"), torch.ones(2)
    for allowed, count in ((False, 0), (True, 1)):
        monkeypatch.setattr(replay, "_allowed", allowed)
        for _ in range(3):
            assert torch.equal(run(x, x)[0], 2 * x)
        assert len(made) == count
