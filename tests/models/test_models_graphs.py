"""Replayed passes: the numbers of the passes themselves, whatever changes between them."""

import pytest
import torch

from marble import replay
from marble.models.conditioning import Conditioning
from marble.models.graphs import Graphs, TrainedGraphs


class Tape:
    """Stands in for CUDA: what is replayed reads and writes the memory it was recorded with."""

    def __init__(self):
        self.made = 0

    def __call__(self, compute):
        self.made += 1
        results = compute()

        def replay():
            many = zip(results, compute()) if isinstance(results, tuple) else [(results, compute())]
            for place, value in many:
                if place is not None:
                    place.copy_(value)

        return replay, results


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


class Net(torch.nn.Module):
    """A LoRA's shape: two factors, and a parameter that takes no part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.down, self.up = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 3, bias=False)
        self.spare = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, sigma_B, cond):
        return self.up(torch.tanh(self.down(x))) * sigma_B[:, None] + cond.tensors["text"].sum()


def taken(net, run):
    """Gradients of three micro-batches, summed as training sums them; outputs on the way."""
    net.zero_grad(set_to_none=True)
    outs = []
    for seed in range(3):
        x, sigma, cond = batch(4, seed)
        v = run(x, sigma, cond)
        outs.append(v.detach())
        torch.autograd.backward(v, torch.cos(v.detach()))
    return outs, [p.grad for p in net.parameters()]


def test_trained_passes_have_the_gradients_of_the_passes_themselves():
    net, tape, said = Net(), Tape(), []
    graphs = TrainedGraphs(net, list(net.parameters()), said.append, record=tape)
    for _ in range(3):  # the weights change in place between steps
        wanted, gradients = taken(net, net)
        gradients = [None if g is None else g.clone() for g in gradients]
        found, own = taken(net, graphs)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted))
        for a, b in zip(own, gradients):
            assert (a is None and b is None) or torch.equal(a, b)
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradients):
                if g is not None:
                    p.sub_(g, alpha=0.1)
    assert tape.made == 2 and graphs.replayed == 8 and not said  # forward and backward, once


def test_a_replayed_pass_is_differentiated_before_the_next_and_once():
    net = Net()
    graphs = TrainedGraphs(net, list(net.parameters()), print, record=Tape())
    first, second, third = (graphs(*batch(4, seed)) for seed in range(3))
    first.sum().backward()  # computed as it is: warms up
    with pytest.raises(RuntimeError, match="before the next"):
        second.sum().backward()
    third.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        third.sum().backward()


def test_training_goes_on_where_nothing_can_be_recorded():
    def refuse(compute):
        raise RuntimeError("capture failed")

    net, said = Net(), []
    graphs = TrainedGraphs(net, list(net.parameters()), said.append, record=refuse)
    wanted, gradients = taken(net, net)
    gradients = [None if g is None else g.clone() for g in gradients]
    found, own = taken(net, graphs)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(own, gradients))
    assert said == ["training goes on without CUDA graphs (capture failed)"]


@pytest.fixture
def as_cuda(adapter, monkeypatch):
    """An adapter that takes itself for one on a GPU; the tape stands in for CUDA."""
    tape = Tape()
    monkeypatch.setattr(replay, "record_cuda", tape)
    monkeypatch.setattr(replay, "_allowed", True)
    kind = type(adapter)
    monkeypatch.setattr(kind, "_replays", property(lambda self: True))
    return tape


def test_an_adapter_draws_the_same_with_them(adapter, randomise, as_cuda):
    """Recorded once for all drawing: a LoRA is merged where the frozen weights lie."""
    from marble.models import merge

    how = {"steps": 4, "guidance": 2.0, "batch_size": 2}
    cond, seeds = adapter.encode(["a", "b", "c"]), [1, 2, 3]
    for seed in (2, 5):
        randomise(adapter, seed=seed, name="old")
        with adapter.using("old"):
            wanted = adapter.sample(cond, seeds, **how)
        with merge.merged(adapter.transformer, "old"):
            adapter._draws = True
            found = adapter.sample(cond, seeds, **how)
            adapter._draws = False
        assert torch.allclose(found, wanted, atol=1e-5)
    assert as_cuda.made == 2  # a batch of 2, one of 1


def test_an_adapter_trains_the_same_with_them(adapter, randomise, as_cuda):
    randomise(adapter, seed=2)
    parameters = list(adapter.lora_parameters().values())
    cond = adapter.encode(["a", "b"])

    def step(run):
        for p in parameters:
            p.grad = None
        for seed in range(4):
            x = adapter.noise([seed, seed + 1])
            v = run(x, torch.tensor([0.3, 0.8]), cond)
            torch.autograd.backward(v, torch.sin(v.detach()))
        return [p.grad.clone() for p in parameters]

    wanted, found = step(adapter.velocity), step(adapter.replayed)
    assert as_cuda.made == 2
    assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    with torch.no_grad(), adapter.using("old"):
        x, sigma = adapter.noise([1, 2]), torch.tensor([0.3, 0.8])
        kept = [adapter.replayed(x, sigma, cond) for _ in range(3)]
        assert all(torch.equal(k, adapter.velocity(x, sigma, cond)) for k in kept)
    assert as_cuda.made == 3  # another adapter, another recording


def test_a_large_or_compiled_model_is_not_recorded(adapter, monkeypatch):
    monkeypatch.setattr(replay, "_allowed", False)
    adapter.replays = True
    assert not adapter._replays and not replay._allowed  # on a CPU
    adapter.device = type("Cuda", (), {"type": "cuda"})()
    assert adapter._replays and replay._allowed
    adapter.compiled = object()
    assert not adapter._replays


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_recorded_training_is_training(monkeypatch):
    monkeypatch.setattr(replay, "_allowed", True)
    net = Net().cuda()
    graphs = TrainedGraphs(net, list(net.parameters()), print)

    def on_gpu(run):
        return lambda x, s, c: run(
            x.cuda(), s.cuda(), Conditioning({"text": c.tensors["text"].cuda()})
        )

    wanted, gradients = taken(net, on_gpu(net))
    gradients = [None if g is None else g.clone() for g in gradients]
    for _ in range(2):
        found, own = taken(net, on_gpu(graphs))
        assert all(torch.allclose(a, b) for a, b in zip(found, wanted))
        assert all(a is b is None or torch.allclose(a, b) for a, b in zip(own, gradients))
    assert graphs.replayed == 5
