"""Replayed passes: the numbers of the passes themselves, whatever changes between them."""

import torch

from marble.models.conditioning import Conditioning
from marble.models.graphs import Graphs


class Tape:
    """Stands in for CUDA: what is replayed reads and writes the memory it was recorded with."""

    def __init__(self):
        self.made = 0

    def __call__(self, compute):
        self.made += 1
        result = compute()
        return lambda: result.copy_(compute()), result


def velocity(x, sigma_B, cond):
    return x * sigma_B[:, None] + cond.tensors["text"].sum(1, keepdim=True)


def batch(n, seed):
    torch.manual_seed(seed)
    return torch.randn(n, 3), torch.rand(n), Conditioning({"text": torch.randn(n, 4)})


def test_replays_follow_every_input():
    tape, said = Tape(), []
    graphs = Graphs(velocity, said.append, record=tape)
    kept = []
    for n, seed in ((4, 1), (4, 2), (4, 3), (2, 4), (4, 5), (2, 6), (2, 7)):
        x, sigma, cond = batch(n, seed)
        for _ in range(3):
            found = graphs(x, sigma, cond)
            kept.append((found, velocity(x, sigma, cond)))
            x, sigma = x + 1, sigma / 2
    assert all(torch.equal(found, wanted) for found, wanted in kept)  # none was overwritten
    assert tape.made == 2 and graphs.replayed == len(kept) - 2 and not said


def test_what_cannot_be_recorded_runs_as_it_is():
    def refuse(compute):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    said = []
    graphs = Graphs(velocity, said.append, record=refuse)
    for seed in range(4):
        x, sigma, cond = batch(4, seed)
        assert torch.equal(graphs(x, sigma, cond), velocity(x, sigma, cond))
    assert len(said) == 1 and "not permitted" in said[0] and "\n" not in said[0]
    assert graphs.replayed == 0


def test_text_of_any_length_is_not_recorded():
    tape = Tape()
    graphs = Graphs(velocity, lambda line: None, record=tape)
    x, sigma, cond = batch(2, 0)
    ragged = Conditioning(dict(cond.tensors), ("text",), (3, 2))
    for _ in range(3):
        assert torch.equal(graphs(x, sigma, ragged), velocity(x, sigma, ragged))
    assert tape.made == 0


def test_an_adapter_draws_the_same_with_them(adapter, randomise, monkeypatch):
    """The device is a word here; the tape stands in for CUDA."""
    from marble.models import graphs

    randomise(adapter, seed=2, name="old")
    how = {"steps": 4, "guidance": 2.0, "batch_size": 2}
    cond, seeds = adapter.encode(["a", "b", "c"]), [1, 2, 3]
    with adapter.using("old"):
        wanted = adapter.sample(cond, seeds, **how)
    tape = Tape()
    monkeypatch.setattr(graphs, "record_cuda", tape)
    with monkeypatch.context() as patch:
        patch.setattr(adapter, "device", type("Cuda", (), {"type": "cuda"})())
        patch.setattr(adapter, "replays", True)  # model.compile: auto
        drawing = adapter.drawing("old")
        drawing.__enter__()
    found = adapter.sample(cond, seeds, **how)
    drawing.__exit__(None, None, None)
    assert tape.made == 2  # a batch of 2, one of 1
    assert torch.allclose(found, wanted, atol=1e-5)
    assert adapter._graphs is None
