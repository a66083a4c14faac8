"""What the Jacobian refuses, leaves alone, remembers and frees."""

import gc
import weakref

import pytest
import torch
from _jacobian_model import (
    make_batch,
    tiny_sd3,
    trainable,
    two_pass,
    velocity,
    weights,
)
from peft import LoraConfig, get_peft_model
from torch import nn

from marble.errors import MarbleError
from marble.jacobian import Jacobian, adam_metric
from marble.objectives import NFT


@pytest.fixture
def model():
    return tiny_sd3()


def small_net(**linear) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4, **linear), nn.Tanh(), nn.Linear(4, 4, bias=False))


def backward_once(jac, net, *, P=None, N=None, r=None, weight=None, **options):
    with jac.recording():
        v = net(torch.ones(2, 3, 4))
    full = torch.ones_like(v)
    r = torch.full((jac.k, 2), 0.7) if r is None else r
    weight = torch.full((jac.k, 2), 0.5) if weight is None else weight
    pairs = [(full if P is None else P, r * weight), (-full if N is None else N, (1 - r) * weight)]
    jac.backward(v, pairs, **options)


def test_refuses_uncovered_parameters_by_name():
    with pytest.raises(MarbleError, match=r"2 trainable.*0\.weight, 0\.bias"):
        Jacobian(small_net(), 2)
    with pytest.raises(MarbleError, match=r"1\.weight, 1\.bias"):
        Jacobian(nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4)), 2)
    tied = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    tied[1].weight = tied[0].weight
    with pytest.raises(MarbleError, match=r"0\.weight"):
        Jacobian(tied, 2)
    attention = nn.MultiheadAttention(4, 2, bias=False)
    attention.in_proj_weight.requires_grad_(False)
    with pytest.raises(MarbleError, match=r"out_proj\.weight"):
        Jacobian(attention, 2)
    patched = small_net(bias=False)
    patched[0].forward = patched[0].forward
    with pytest.raises(MarbleError, match=r"0\.weight"):
        Jacobian(patched, 2)


def test_refuses_lora_variants_with_further_parameters():
    config = LoraConfig(r=2, target_modules=["0"], use_dora=True)
    with pytest.raises(MarbleError, match="lora_magnitude_vector"):
        Jacobian(get_peft_model(small_net(bias=False), config), 2)


def test_refuses_nothing_to_train_and_odd_arguments():
    frozen = small_net().requires_grad_(False)
    with pytest.raises(MarbleError, match="no trainable parameter"):
        Jacobian(frozen, 2)
    net = small_net(bias=False)
    for options in ({"k": 0}, {"k": 2, "slots": 0}):
        with pytest.raises(MarbleError):
            Jacobian(net, **options)
    with pytest.raises(MarbleError, match="3 names for 2"):
        Jacobian(net, 2, names=["a", "b", "c"])


def test_ordinary_steps_are_untouched(model):
    """Same classes and attributes before and after; ordinary gradients, bit for bit."""
    batch = make_batch(model, 3, 2)

    def ordinary():
        velocity(model, batch).square().sum().backward()
        grads = [p.grad.clone() for p in trainable(model)]
        model.zero_grad()
        return grads

    before = ordinary()
    shape = [(type(m), sorted(vars(m))) for m in model.modules()]
    keys = list(model.state_dict())
    jac = Jacobian(model, 2)
    two_pass(jac, batch, NFT(), (3,))
    assert all(p.grad is None for p in model.parameters())
    assert [(type(m), sorted(vars(m))) for m in model.modules()] == shape
    assert list(model.state_dict()) == keys
    assert all(torch.equal(a, b) for a, b in zip(before, ordinary()))


def test_recorded_forward_gives_the_same_output(model):
    batch = make_batch(model, 3, 2)
    with Jacobian(model, 2).recording():
        recorded = velocity(model, batch)
    torch.testing.assert_close(recorded, velocity(model, batch), rtol=1e-13, atol=1e-14)


def test_layers_are_restored_after_an_error(model):
    jac = Jacobian(model, 2)
    kinds = [type(m) for m in model.modules()]
    with pytest.raises(ZeroDivisionError), jac.recording():
        raise ZeroDivisionError
    assert [type(m) for m in model.modules()] == kinds
    with jac.recording(), pytest.raises(MarbleError, match="already active"), jac.recording():
        pass


def test_a_forward_that_was_not_recorded_is_refused(model):
    batch = make_batch(model, 3, 2)
    jac = Jacobian(model, 2)
    v = velocity(model, batch)
    with pytest.raises(MarbleError, match="recorded forward"):
        jac.backward(v, [(v.detach(), weights(batch))])
    with jac.recording(), torch.no_grad():
        v = velocity(model, batch)
    with pytest.raises(MarbleError, match="gradients enabled"):
        jac.backward(v, [(v, weights(batch))])


def test_an_ordinary_backward_of_a_recorded_forward_is_refused(model):
    batch = make_batch(model, 3, 2)
    with Jacobian(model, 2).recording():
        v = velocity(model, batch)
    with pytest.raises(MarbleError, match=r"outside Jacobian\.backward"):
        v.sum().backward()


def test_wrong_shapes():
    net = small_net(bias=False)
    jac = Jacobian(net, 2)
    for name, said, value in (
        ("P", "cotangent 0", torch.ones(2, 4)),
        ("N", "cotangent 1", torch.ones(2, 3, 5)),
        ("outside", "outside", torch.ones(2)),
    ):
        with pytest.raises(MarbleError, match=f"{said} has shape"):
            backward_once(jac, net, **{name: value})
    with pytest.raises(MarbleError, match=r"weights 0 has shape \(3, 2\), expected \(2, 2\)"):
        backward_once(jac, net, r=torch.ones(3, 2), weight=torch.ones(3, 2))
    with pytest.raises(MarbleError, match="no slot 1"):
        backward_once(jac, net, slot=1)
    with pytest.raises(MarbleError, match="at least one term"):
        jac.backward(torch.ones(2, 3, 4), [])
    with pytest.raises(MarbleError, match="2 finite coefficients"):
        jac.combine(torch.ones(3))
    with pytest.raises(MarbleError, match="no slot 2"):
        jac.gram(slots=(0, 2))


def test_a_layer_that_does_not_see_the_batch_first_is_named():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.inner(x.reshape(-1, 4)).reshape(x.shape)

    net = Flat()
    jac = Jacobian(net, 2)
    with pytest.raises(MarbleError, match=r"inner\.weight"):
        backward_once(jac, net)


def test_non_finite_input_names_the_reward_or_the_sample():
    net = small_net(bias=False)
    jac = Jacobian(net, 2, names=["ocr", "clip"])
    r = torch.full((2, 2), 0.7)
    r[1, 0] = torch.nan
    backward_once(jac, net, r=r)
    with pytest.raises(MarbleError, match="Reward clip: a weight is not finite"):
        jac.gram()
    with pytest.raises(MarbleError, match="Reward clip"):
        jac.reduce()
    jac.zero()
    bad = torch.ones(2, 3, 4)
    bad[1, 0, 0] = torch.inf
    backward_once(jac, net)
    backward_once(jac, net, P=bad)
    with pytest.raises(MarbleError, match="sample 1 in micro-batch 1"):
        jac.gram()
    jac.zero()
    backward_once(jac, net, weight=torch.tensor([[1.0, 1.0], [1e38, 1e38]]))
    with pytest.raises(MarbleError, match="gradient of reward clip is not finite"):
        jac.rows.data[0, 1].mul_(1e10)
        jac.gram()
    jac.zero()
    backward_once(jac, net)
    assert jac.gram().isfinite().all()


def test_a_silent_reward_has_a_zero_gradient():
    net = small_net(bias=False)
    jac = Jacobian(net, 2)
    weight = torch.tensor([[0.5, 0.5], [0.0, 0.0]])
    backward_once(jac, net, r=torch.tensor([[0.7, 0.2], [0.5, 0.5]]), weight=weight)
    gram = jac.gram()
    assert gram[0, 0] > 0 and (gram[1] == 0).all()


def test_adams_metric(model):
    batch = make_batch(model, 4, 3)
    optimizer = torch.optim.AdamW(trainable(model), lr=0.0, betas=(0.9, 0.99), eps=1e-6)
    with pytest.raises(MarbleError, match="one optimiser step"):
        adam_metric(optimizer)
    velocity(model, batch).square().sum().backward()
    optimizer.step()
    second = torch.cat([p.grad.flatten() ** 2 for p in trainable(model)])
    jac = Jacobian(model, 3)
    found = jac.flatten(adam_metric(optimizer))
    torch.testing.assert_close(found, 1 / (second.sqrt() + 1e-6), rtol=1e-9, atol=0)
    with pytest.raises(MarbleError, match="SGD"):
        adam_metric(torch.optim.SGD(trainable(model)))
    with pytest.raises(MarbleError, match="got nothing"):
        jac.flatten({})


def test_accumulators_are_freed_with_the_jacobian(model):
    batch = make_batch(model, 3, 2)
    jac = Jacobian(model, 2)
    two_pass(jac, batch, NFT(), (3,))
    rows = weakref.ref(jac.rows.data)
    gc.disable()
    try:
        del jac
        assert rows() is None
    finally:
        gc.enable()
