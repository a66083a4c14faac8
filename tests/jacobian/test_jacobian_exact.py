"""Two passes equal K literal losses with K separate backwards."""

import pytest
import torch
from _jacobian_model import (
    Batch,
    backward,
    literal_gradients,
    make_batch,
    relative_error,
    tiny_sd3,
    trainable,
    two_pass,
    velocity,
    weights,
)

from marble.jacobian import Jacobian
from marble.objectives import NFT, mix

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
DTYPES = [torch.float64, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("off_policy", [True, False])
@pytest.mark.parametrize("masked, clamped", [(True, True), (False, False)])
def test_equals_k_separate_backwards(dtype, adaptive, off_policy, masked, clamped):
    model = tiny_sd3(dtype)
    batch = make_batch(model, 6, 5, masked=masked, clamped=clamped, off_policy=off_policy)
    nft = NFT(form="adaptive" if adaptive else "plain")
    rows = two_pass(Jacobian(model, 5), batch, nft, (3, 2, 1))
    assert rows.dtype == dtype
    assert relative_error(rows, literal_gradients(model, batch, nft)) <= TOLERANCE[dtype]


def test_the_batches_do_contain_what_they_claim():
    model = tiny_sd3()
    batch = make_batch(model, 6, 5)
    known = batch.r[batch.valid]
    assert ((known == 0) | (known == 1)).any() and ((known > 0) & (known < 1)).any()
    assert not batch.valid.all() and batch.r[~batch.valid].isnan().all()
    assert (velocity(model, batch) - batch.v_old).abs().max() > 1e-3
    on_policy = make_batch(model, 6, 5, off_policy=False)
    assert torch.equal(velocity(model, on_policy), on_policy.v_old)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_checkpointing(dtype):
    model = tiny_sd3(dtype)
    batch = make_batch(model, 5, 4)
    literal = literal_gradients(model, batch, NFT())
    model.train()
    model.enable_gradient_checkpointing()
    rows = two_pass(Jacobian(model, 4), batch, NFT(), (3, 2))
    assert relative_error(rows, literal) <= TOLERANCE[dtype]


def test_many_rewards_and_one():
    model = tiny_sd3()
    for k in (1, 40):
        batch = make_batch(model, 4, k)
        rows = two_pass(Jacobian(model, k), batch, NFT(), (4,))
        assert relative_error(rows, literal_gradients(model, batch, NFT())) <= 1e-12


def test_gram_is_that_of_the_gradients():
    model = tiny_sd3()
    batch = make_batch(model, 6, 5)
    literal = literal_gradients(model, batch, NFT())
    jac = Jacobian(model, 5)
    two_pass(jac, batch, NFT(), (4, 2))
    assert jac.gram().dtype == torch.float64
    torch.testing.assert_close(jac.gram(), literal @ literal.T, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adaptive", [True, False])
def test_one_weighted_backward_is_the_combination(dtype, adaptive):
    """Random coefficients, not on the simplex, with masks and clamps, over micro-batches."""
    model = tiny_sd3(dtype)
    batch = make_batch(model, 6, 5)
    nft = NFT(form="adaptive" if adaptive else "plain")
    c = torch.tensor([0.3, 2.0, 0.0, 1.1, 0.7], dtype=torch.float64)
    expected = c @ literal_gradients(model, batch, nft)

    jac = Jacobian(model, 5)
    two_pass(jac, batch, nft, (4, 2))
    jac.write_grad(c)
    written = torch.cat([p.grad.flatten() for p in trainable(model)])
    assert relative_error(written, expected) <= TOLERANCE[dtype]

    model.zero_grad()
    for index in (slice(0, 4), slice(4, 6)):
        part = batch.part(index)
        plus, minus = nft.sides(velocity(model, part), part.point())
        rho_plus, rho_minus = mix(c, part.r, 1 - part.r, part.valid, batch.valid.sum(1))
        (rho_plus * plus + rho_minus * minus).sum().backward()
    weighted = torch.cat([p.grad.flatten() for p in trainable(model)])
    assert relative_error(weighted, expected) <= TOLERANCE[dtype]


def test_weighted_backward_is_the_papers_amortised_step_without_clamps():
    """Coefficients on the simplex, all rewards valid: the loss of the combined advantage."""
    model = tiny_sd3()
    batch = make_batch(model, 6, 5, masked=False, clamped=False)
    nft = NFT()
    alpha = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
    advantage = (batch.r - 0.5) * 2 * nft.options.a_max
    assert advantage.abs().max() < nft.options.a_max
    combined = (0.5 + (alpha @ advantage) / (2 * nft.options.a_max)).clamp(0, 1)
    plus, minus = nft.sides(velocity(model, batch), batch.point())
    loss = (combined * plus + (1 - combined) * minus).mean()
    paper = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trainable(model))])

    rho_plus, rho_minus = mix(alpha, batch.r, 1 - batch.r, batch.valid)
    plus, minus = nft.sides(velocity(model, batch), batch.point())
    loss = (rho_plus * plus + rho_minus * minus).sum()
    ours = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trainable(model))])
    assert relative_error(ours, paper) <= 1e-12


def test_bf16_autocast_is_no_worse_than_separate_bf16_backwards():
    """Errors against the fp64 truth, mean over rewards, seeds, both losses, on and off policy."""

    def autocast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return velocity(model, batch)

    ours, separate = [], []
    for seed in range(6):
        for adaptive in (True, False):
            for off_policy in (True, False):
                model = tiny_sd3(seed=seed)
                batch = make_batch(model, 8, 5, seed=seed, off_policy=off_policy)
                nft = NFT(form="adaptive" if adaptive else "plain")
                truth = literal_gradients(model, batch, nft)
                model.float()
                low = Batch(**{n: x if n in ("r", "valid") else x.float()
                               for n, x in vars(batch).items()})  # fmt: skip
                for errors, rows in (
                    (ours, two_pass(Jacobian(model, 5), low, nft, (8,), forward=autocast)),
                    (separate, literal_gradients(model, low, nft, forward=autocast)),
                ):
                    errors.append((rows.double() - truth).norm(dim=1) / truth.norm(dim=1))
    ours_mean, separate_mean = float(torch.stack(ours).mean()), float(torch.stack(separate).mean())
    assert 1e-3 < separate_mean < 2e-2
    # 120 errors a side: the mean itself is known to about 1 %.
    assert ours_mean <= 1.01 * separate_mean


def test_backward_called_under_autocast_is_not_rounded():
    model = tiny_sd3(torch.float32)
    batch = make_batch(model, 4, 3)
    rows = []
    for enabled in (False, True):
        jac = Jacobian(model, 3)
        with torch.autocast("cpu", torch.bfloat16), jac.recording():
            v = velocity(model, batch)
        P, N = NFT().cotangents(v, batch.point())
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            backward(jac, v, (P, N), batch.r, weights(batch))
        rows.append(jac.rows.data[0])
    assert torch.equal(*rows)


def test_plain_linear_layers_shared_weights_and_unused_layers():
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(6, 6, bias=False)
            self.b = torch.nn.Linear(6, 6, bias=False)
            self.b.weight = self.a.weight
            self.vector = torch.nn.Linear(6, 6, bias=False)
            self.unused = torch.nn.Linear(2, 2, bias=False)
            self.frozen = torch.nn.Linear(6, 6).requires_grad_(False)

        def forward(self, x):
            x = self.b(torch.tanh(self.frozen(self.a(x))))
            return x + self.vector(x.mean((1, 2)))[:, None, None]

    net = Net().double()
    x, target = torch.randn(2, 4, 3, 5, 6, dtype=torch.float64)
    weight = torch.rand(3, 4, dtype=torch.float64)
    r = torch.rand(3, 4, dtype=torch.float64)
    jac = Jacobian(net, 3)
    with jac.recording():
        v = net(x)
    P, N = v.detach() - target, v.detach() + target
    backward(jac, v, (P, N), r, weight)
    for k in range(3):
        cotangent = (weight[k] * r[k])[:, None, None, None] * P
        cotangent = cotangent + (weight[k] * (1 - r[k]))[:, None, None, None] * N
        grads = torch.autograd.grad(net(x), trainable(net), cotangent, allow_unused=True)
        flat = torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten()
             for p, g in zip(trainable(net), grads)]
        )  # fmt: skip
        assert relative_error(jac.rows.data[0, k], flat) <= 1e-14


def test_slots_add_up_and_cross():
    model = tiny_sd3()
    batch = make_batch(model, 6, 4)
    literal = literal_gradients(model, batch, NFT())
    jac = Jacobian(model, 4, slots=2)
    weight, parts = weights(batch), []
    for slot, index in enumerate((slice(0, 3), slice(3, 6))):
        part = batch.part(index)
        with jac.recording():
            v = velocity(model, part)
        cotangents = NFT().cotangents(v, part.point())
        backward(jac, v, cotangents, part.r, weight[:, index], slot=slot)
        parts.append(jac.rows.data[slot].clone())
    close = {"rtol": 1e-11, "atol": 1e-14}
    torch.testing.assert_close(parts[0] + parts[1], literal, **close)
    torch.testing.assert_close(jac.gram(), literal @ literal.T, **close)
    torch.testing.assert_close(jac.gram(slots=(0, 1)), parts[0] @ parts[1].T, **close)
    torch.testing.assert_close(jac.gram(slots=(1, 1)), parts[1] @ parts[1].T, **close)
    vector = {p: torch.randn_like(p) for p in trainable(model)}
    flat = torch.cat([x.flatten() for x in vector.values()])
    torch.testing.assert_close(jac.dot(vector), literal @ flat, **close)
    torch.testing.assert_close(jac.dot(vector, slot=1), parts[1] @ flat, **close)


@pytest.mark.parametrize("with_extra", [True, False])
def test_target_reward_keeps_the_common_pull_outside(with_extra):
    """h_k balanced, W over all samples and the KL outside; `mix` gives the same in one pass."""
    model = tiny_sd3()
    batch = make_batch(model, 6, 3)
    nft, weight = NFT(), weights(batch)
    c = torch.tensor([0.5, 0.2, 1.4], dtype=torch.float64)

    def outside_loss(v):
        return 0.01 * v.square().sum() / 6 if with_extra else 0.0 * v.sum()

    v = velocity(model, batch)
    plus, minus = nft.sides(v, batch.point())
    rows = []
    for k in range(3):
        signed = weight[k] * torch.where(batch.valid[k], 2 * batch.r[k] - 1, 0.0)
        grads = torch.autograd.grad(
            (signed * (plus - minus) / 2).sum(), trainable(model), retain_graph=True
        )
        rows.append(torch.cat([g.flatten() for g in grads]))
    literal = torch.stack(rows)
    common = ((plus + minus) / 2).mean() + outside_loss(v)
    common = torch.cat([g.flatten() for g in torch.autograd.grad(common, trainable(model))])

    jac = Jacobian(model, 3)
    for index in (slice(0, 4), slice(4, 6)):
        part = batch.part(index)
        with jac.recording():
            v = velocity(model, part)
        extra = 0.02 * v.detach() / 6 if with_extra else None
        shared = torch.full((len(part.t),), 1 / 6, dtype=torch.float64)
        backward(jac, v, nft.cotangents(v, part.point()), part.r, weight[:, index],
                 common_B=shared, extra=extra)  # fmt: skip
    assert relative_error(jac.rows.data[0], literal) <= 1e-12
    torch.testing.assert_close(jac.gram(), literal @ literal.T, rtol=1e-11, atol=0)
    assert relative_error(jac.combine(c), c @ literal + common) <= 1e-12

    v = velocity(model, batch)
    plus, minus = nft.sides(v, batch.point())
    rho_plus, rho_minus = mix(c, batch.r, 1 - batch.r, batch.valid, target="reward")
    loss = (rho_plus * plus + rho_minus * minus).sum() + outside_loss(v)
    once = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trainable(model))])
    assert relative_error(once, c @ literal + common) <= 1e-12


def test_extra_with_full_target_is_added_unweighted():
    model = tiny_sd3()
    batch = make_batch(model, 4, 3)
    literal = literal_gradients(model, batch, NFT())
    v = velocity(model, batch)
    outside = torch.autograd.grad(v.square().sum(), trainable(model))
    outside = torch.cat([g.flatten() for g in outside])
    jac = Jacobian(model, 3)
    with jac.recording():
        v = velocity(model, batch)
    P, N = NFT().cotangents(v, batch.point())
    backward(jac, v, (P, N), batch.r, weights(batch), extra=2 * v.detach())
    assert relative_error(jac.rows.data[0], literal) <= 1e-12
    c = torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64)
    jac.write_grad(c)
    written = torch.cat([p.grad.flatten() for p in trainable(model)])
    assert relative_error(written, c @ literal + outside) <= 1e-12
