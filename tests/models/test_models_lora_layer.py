"""Our LoRA layer: peft's numbers without its casts, and gradients no worse than autocast's own."""

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora import Linear
from torch import nn

from marble.jacobian import Jacobian
from marble.jacobian.wide import sample_gradients, weight_gradient
from marble.models import load, lora, lora_layer
from marble.models.lora_layer import Factor, LeanLinear, keep_low, make_lean

BF16 = torch.bfloat16


def layer(seed=0, width=64, rank=8, alpha=16.0, dtype=BF16):
    """peft's own layer with random factors, fp32 as trained."""
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha)
    made = Linear(nn.Linear(width, width), "default", config, r=rank, lora_alpha=alpha)
    made.requires_grad_(False)
    made.base_layer.to(dtype)
    for factor in (made.lora_A["default"], made.lora_B["default"]):
        factor.weight.data = torch.randn(factor.weight.shape) * 0.1
        factor.weight.requires_grad_(True)
    return made


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def run(model, x, autocast=True):
    """(y, gradients of A, B and x)."""
    x = x.clone().requires_grad_()
    factors = [f["default"].weight for f in (model.inner.lora_A, model.inner.lora_B)]
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        y = model(x)
    generator = torch.Generator().manual_seed(5)
    y.backward(torch.randn(y.shape, generator=generator).to(y.dtype))
    found = (y.detach(), *(f.grad for f in factors), x.grad)
    for f in factors:
        f.grad = None
    return found


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("alpha", [16.0, 12.0])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_the_same_as_peft(alpha, dtype):
    """Equal bits where the scale is a power of two, else equal but for rounding."""
    x = torch.randn(4, 7, 64, generator=torch.Generator().manual_seed(1))
    for autocast in (False, True):
        given = x.to(dtype) if not autocast else x
        wanted = run(Holder(layer(alpha=alpha, dtype=dtype)), given, autocast)
        lean = layer(alpha=alpha, dtype=dtype)
        make_lean([lean])
        found = run(Holder(lean), given, autocast)
        for a, b in zip(found, wanted):
            assert a.dtype == b.dtype
            if alpha == 16:
                assert torch.equal(a, b)
            else:
                assert torch.allclose(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))


def test_gradients_are_as_exact_as_under_autocast():
    """Against fp64 on the same weights: no larger than 1.05 of what peft under autocast has."""
    x = torch.randn(4, 256, 64, generator=torch.Generator().manual_seed(1)).to(BF16)
    exact = run(Holder(layer().double()), x.double(), autocast=False)
    stock = run(Holder(layer()), x)
    lean = layer()
    make_lean([lean])
    model = Holder(lean)
    keep_low(model, [lean], BF16)
    for name, found, peft, true in zip("yABx", run(model, x), stock, exact):
        assert error(found, true) <= 1.05 * error(peft, true) + 1e-6, name
        assert error(found, true) < 1e-2


def test_bits_are_peft_s_with_low_copies_too():
    """q, k and v of one fp32 input, as a norm leaves it: its gradient is added up in fp32."""

    class Three(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            x = 1 * x  # autocast keeps its copy of a leaf
            return sum(made(x) for made in self.layers)

    found = []
    for ours in (False, True):
        model = Three([layer(seed) for seed in range(3)])
        if ours:
            make_lean(model.layers)
            keep_low(model, model.layers, BF16)
        x = torch.randn(4, 7, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", dtype=BF16):
            y = model(x)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y.dtype))
        weights = [p.grad for p in model.parameters() if p.requires_grad]
        assert len(weights) == 6
        found.append([y, x.grad, *weights])
    for a, b in zip(*found):
        assert a.dtype == b.dtype and torch.equal(a, b)


def factor_gradient(x, delta, low, compiled):
    """Of y = x·lowᵀ by the fp32 weights behind `low`."""
    factor = Factor(x.shape[-1], delta.shape[-1], bias=False)
    factor.register_buffer("low", factor.weight.detach().to(low), persistent=False)
    run = torch.compile(factor, backend="aot_eager", fullgraph=True) if compiled else factor
    run(x).backward(delta)
    assert factor.weight.grad.dtype == torch.float32
    return factor.weight.grad


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("given", [BF16, torch.float32])
def test_on_a_gpu_the_gradient_s_sum_is_not_rounded_to_16_bits(monkeypatch, compiled, given):
    """bf16 rounds by 1e-3; a CPU does so still, as its fp32 products are slow."""
    torch.compiler.reset()
    generator = torch.Generator().manual_seed(1)
    x, delta = (torch.randn(3, 100, n, generator=generator).to(BF16) for n in (64, 8))
    exact = delta.double().flatten(0, 1).t() @ x.double().flatten(0, 1)
    rounded = factor_gradient(x.to(given), delta, BF16, compiled)
    assert torch.equal(rounded, (delta.flatten(0, 1).t() @ x.flatten(0, 1)).float())
    assert error(rounded, exact) > 5e-4
    monkeypatch.setattr(lora_layer, "WIDE", ("cpu",))
    torch.compiler.reset()
    assert error(factor_gradient(x.to(given), delta, BF16, compiled), exact) < 1e-6


def test_factors_that_are_fp32_already_are_multiplied_as_they_are(monkeypatch):
    monkeypatch.setattr(lora_layer, "WIDE", ("cpu",))
    monkeypatch.setattr(lora_layer, "weight_gradient", None)
    x, delta = torch.randn(5, 4), torch.randn(5, 3)
    assert torch.equal(factor_gradient(x, delta, torch.float32, False), delta.t() @ x)


def operands(strided):
    """δ and x in 16 bits; strided: the first of more tokens, as in a joint attention."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(3, 7 + 4 * strided, n, generator=generator).to(BF16) for n in (5, 6)]
    return [tensor[:, :7] for tensor in made]


@pytest.mark.parametrize("strided", [False, True])
def test_weight_gradients_are_fp32_sums(strided):
    delta, x = operands(strided)
    exact = torch.einsum("bto,bti->boi", delta.double(), x.double())
    for found, wanted in (
        (sample_gradients(delta, x), exact),
        (weight_gradient(delta, x), exact.sum(0)),
        (weight_gradient(delta.flatten(0, 1), x.flatten(0, 1)), exact.sum(0)),
    ):
        assert found.dtype == torch.float32 and error(found, wanted) < 1e-6
    for product in (sample_gradients, weight_gradient):
        torch.library.opcheck(product, (delta, x))


def three(factory=layer):
    """q, k and v with low copies, and the model that keeps these up to date."""
    layers = [factory(seed) for seed in range(3)]
    make_lean(layers)
    model = nn.ModuleList(layers)
    keep_low(model, layers, BF16)
    return layers


@pytest.mark.parametrize("given", [BF16, torch.float32])
def test_side_by_side_gives_what_each_layer_gives(given):
    """The same outputs and factor gradients, bit for bit; x's gradient no further from fp64's."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 7, 64, generator=generator).to(given)
    deltas = [torch.randn(4, 7, 64, generator=generator) for _ in range(3)]
    found = []
    for joined in (False, True):
        layers, leaf = three(), x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=BF16):
            inner = 1 * leaf
            if joined:
                outputs = lora_layer.side_by_side(layers, inner)
            else:
                outputs = [one(inner) for one in layers]
        total = sum((y.float() * delta).sum() for y, delta in zip(outputs, deltas))
        total.backward()
        factors = [p.grad for one in layers for p in one.parameters() if p.requires_grad]
        assert len(factors) == 6 and all(f.dtype == torch.float32 for f in factors)
        found.append(([y.detach() for y in outputs], factors, leaf.grad))
    apart, together = found
    for a, b in zip((*apart[0], *apart[1]), (*together[0], *together[1])):
        assert a.dtype == b.dtype and torch.equal(a, b)
    exact = [layer(seed).double() for seed in range(3)]
    leaf = x.double().requires_grad_()
    sum((one(leaf) * delta).sum() for one, delta in zip(exact, deltas)).backward()
    assert error(together[2], leaf.grad) <= 1.05 * error(apart[2], leaf.grad)


def test_side_by_side_takes_the_narrow_products_at_once(monkeypatch):
    calls = []
    inner = lora_layer.LowLinears.apply
    monkeypatch.setattr(
        lora_layer.LowLinears, "apply", lambda *args: calls.append(len(args)) or inner(*args)
    )
    x = torch.randn(2, 3, 64).to(BF16)
    plain = three()
    lora_layer.side_by_side(plain, x)
    assert calls == [2 + 3]
    hooked, recorded, off, other = three(), three(), three(), three()
    hooked[1].lora_A["default"].register_forward_hook(lambda *_: None)  # as sliders do
    off[2].enable_adapters(False)
    make_lean([alone := layer(7)])  # without a low copy
    other[0] = alone.to(BF16)
    for layers in (hooked, off, other):
        wanted = [one(x) for one in layers]
        for a, b in zip(lora_layer.side_by_side(layers, x), wanted):
            assert torch.equal(a, b)
    jac = Jacobian(nn.ModuleList(recorded), 1)
    with jac.recording():
        lora_layer.side_by_side(recorded, x)
    assert len(calls) == 1


def test_low_copies_follow_every_change_of_the_weights():
    lean = layer()
    make_lean([lean])
    model = Holder(lean)
    keep_low(model, [lean], BF16)
    x = torch.randn(2, 3, 64)
    weight = lean.lora_B["default"].weight
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    before = run(model, x)[0]
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    stepped = run(model, x)[0]
    assert not torch.equal(before, stepped)
    weight.data.zero_()  # leaves no version behind
    assert torch.equal(
        run(model, x)[0],
        nn.functional.linear(x.to(BF16), lean.base_layer.weight, lean.base_layer.bias),
    )


def test_two_passes_may_wait_for_one_backward():
    lean = layer()
    make_lean([lean])
    model = Holder(lean)
    keep_low(model, [lean], BF16)
    with torch.autocast("cpu", dtype=BF16):
        total = model(torch.ones(1, 2, 64)).sum() + model(torch.ones(1, 2, 64)).sum()
    total.backward()
    assert lean.lora_B["default"].weight.grad.abs().max() > 0


def test_per_sample_gradients_sum_to_the_ordinary_one():
    lean = layer()
    make_lean([lean])
    model = Holder(lean)
    keep_low(model, [lean], BF16)
    x = torch.randn(3, 5, 64)
    cotangent = torch.randn(3, 5, 64)
    jac = Jacobian(model, 1)
    with jac.recording(), torch.autocast("cpu", dtype=BF16):
        v = model(x)
    jac.backward(v, [(cotangent, torch.ones(1, 3))])
    jac.write_grad(torch.ones(1))
    found = [f.weight.grad for f in (lean.lora_A["default"], lean.lora_B["default"])]
    for f in (lean.lora_A["default"], lean.lora_B["default"]):
        f.weight.grad = None
    with torch.autocast("cpu", dtype=BF16):
        v = model(x)
    v.backward(cotangent.to(v.dtype))
    for mine, f in zip(found, (lean.lora_A["default"], lean.lora_B["default"])):
        assert torch.allclose(mine, f.weight.grad, rtol=2e-2, atol=1e-2)


def test_layers_with_more_than_a_plain_lora_stay_peft_s():
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=4, lora_dropout=0.5)
    dropped = Linear(nn.Linear(8, 8), "default", config, r=4, lora_alpha=4, lora_dropout=0.5)
    make_lean([dropped])
    assert type(dropped) is Linear and type(dropped.lora_A["default"]) is nn.Linear


def test_models_get_lean_layers_and_the_file_stays_the_same(folder):
    adapter = load(str(folder))
    adapter.add_lora(4, 8)
    layers = [found for _, found in lora.lora_layers(adapter.transformer)]
    assert layers and all(type(one) is LeanLinear for one in layers)
    assert all(type(one.lora_A["old"]) is Factor for one in layers)
    assert not any("low" in name for name in adapter.transformer.state_dict())
