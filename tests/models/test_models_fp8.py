"""Products in fp8 while drawing: the arithmetic, which layers, and that nothing is left of it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from marble.errors import MarbleError
from marble.models import fp8, load, lora
from marble.models.compiling import Compiled
from marble.models.pipeline import blocks
from marble.models.sd3 import SD3
from marble.recipe import load_recipe

BASE = "sd35m-5rewards"


def e4m3(value):
    """The nearest number of four bits of exponent, three of mantissa, ties to even; by hand."""
    if value == 0:
        return 0.0
    exponent = max(math.floor(math.log2(abs(value))), -6)
    step = 2.0 ** (exponent - 3)
    return float(np.clip(round(value / step) * step, -448, 448))


def reference(x, w):
    """The same product in fp64, number by number."""
    lows = []
    for rows in (x.double().numpy(), w.double().numpy()):
        scale = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-12) / 448
        lows.append((np.vectorize(e4m3)(rows / scale), scale))
    (a, s), (b, t) = lows
    return (a @ b.T) * s * t.T


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_product_is_that_of_the_rounded_numbers(spread):
    """Rows of very different sizes too: each has its own scale."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(24, 64, generator=g) * torch.exp(spread * torch.randn(24, 1, generator=g))
    w = torch.randn(48, 64, generator=g) * torch.exp(spread * torch.randn(48, 1, generator=g))
    bias = torch.randn(48, generator=g)
    low, scale = fp8.quantised(w)
    assert low.dtype == torch.float8_e4m3fn and scale.shape == (48, 1)
    found = fp8.product(x, low, scale, None).double().numpy()
    want = reference(x, w)
    assert np.abs(found - want).max(1).max() <= 2**-8 * np.abs(want).max()  # bf16 comes out
    assert (np.linalg.norm(found - want, axis=1) <= 3e-3 * np.linalg.norm(want, axis=1)).all()
    exact = (x.double() @ w.double().T).numpy()
    lengths = [np.linalg.norm(rows.double().numpy(), axis=1) for rows in (x, w)]
    errors = (found - exact) / np.outer(*lengths) * np.sqrt(64)
    assert 0.01 < np.sqrt(np.square(errors).mean()) < 0.05 and np.abs(errors).max() < 0.25
    assert torch.equal(fp8.product(x, low, scale, bias), fp8.product(x, low, scale, None) + bias)


def test_each_number_is_off_by_a_sixteenth_at_most():
    w = torch.randn(32, 256, generator=torch.Generator().manual_seed(1))
    low, scale = fp8.quantised(w)
    back = low.float() * scale
    big = w.abs() > scale * 2**-6  # below, the format has a fixed step
    assert ((back - w).abs() <= w.abs() / 16 + 1e-7)[big].all()
    assert ((back - w).abs() <= scale * 2**-10 + 1e-9)[~big].all()
    zeros = fp8.product(torch.zeros(4, 256), low, scale, None)
    assert torch.equal(zeros, torch.zeros(4, 32))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.ModuleDict({"linear": nn.Linear(32, 64)})
        self.img_mod = nn.Sequential(nn.SiLU(), nn.Linear(32, 64))
        self.fits, self.odd = nn.Linear(32, 48), nn.Linear(32, 40)


def test_modulation_and_odd_sizes_stay():
    block = Block().requires_grad_(False)
    x, row = torch.randn(2, 5, 32), torch.randn(2, 32)
    plain = block.fits(x)
    assert fp8.fitting([block]) == [block.fits]
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with fp8.drawing([block]) as count:
        assert count == 1 and type(block.odd) is nn.Linear
        low = block.fits(x)
        assert low.shape == plain.shape and low.dtype == plain.dtype
        error = (low - plain).norm() / plain.norm()
        assert 0.005 < error < 0.06
        # One row per picture: what modulates is not taken to fp8, wherever it stands.
        weight, bias = block.fits.weight, block.fits.bias
        assert torch.equal(block.fits(row), nn.functional.linear(row, weight, bias))
        assert list(block.state_dict()) == list(before)
    assert type(block.fits) is nn.Linear and torch.equal(block.fits(x), plain)
    assert not {"low", "scale"} & set(vars(block.fits))
    with pytest.raises(RuntimeError, match="inside"), fp8.drawing([block]):
        raise RuntimeError("inside")
    assert type(block.fits) is nn.Linear


@pytest.fixture
def adapter(tmp_path, randomise):
    found = load(str(SD3.tiny(tmp_path / "model")), dtype="bf16")
    found.add_lora(2, 4)
    for name in ("default", "old"):
        randomise(found, name=name)
    return found


def velocities(adapter, count=3):
    x = torch.randn(count, *adapter.latent_shape, generator=torch.Generator().manual_seed(0))
    cond = adapter.encode(["a cat"] * count)
    with torch.no_grad():
        return adapter.velocity(x, torch.full((count,), 0.6), cond)


def test_a_model_draws_in_fp8_with_the_lora_inside_and_trains_as_before(adapter):
    with adapter.drawing("old"):
        exact = velocities(adapter)
    with adapter.using("default"):
        trained = velocities(adapter)
    with adapter.drawing("base"):
        base = velocities(adapter)
    with adapter.drawing("old", low=True):
        low = velocities(adapter)
        layers = [m for m in adapter.transformer.modules() if type(m) is fp8.Fp8Linear]
        adapted = [m for _, m in lora.lora_layers(adapter.transformer)]
        assert len(layers) > len(adapted) > 0
        # Of the merged weights: what is held is what they round to.
        for layer in layers:
            rounded = fp8.quantised(layer.weight)[0]
            assert torch.equal(layer.low.view(torch.uint8), rounded.view(torch.uint8))
    error = float((low - exact).norm() / exact.norm())
    assert 1e-4 < error < 0.15 and error < float((base - exact).norm() / exact.norm())
    with adapter.drawing("old"):
        assert torch.equal(velocities(adapter), exact)
    with adapter.using("default"):
        assert torch.equal(velocities(adapter), trained)


def test_compiled_blocks_take_it_too(adapter):
    said = []
    with adapter.drawing("old", low=True):
        eager = velocities(adapter)
    torch.compiler.reset()
    compiled = Compiled(blocks(adapter.transformer), said.append, backend="aot_eager")
    with adapter.drawing("old", low=True):
        low = velocities(adapter)
    with adapter.drawing("old"):
        high = velocities(adapter)
    assert compiled.counts["compile/breaks"] == compiled.eager == 0 and compiled.mode == "whole"
    assert compiled.counts["compile/graphs"] >= 2  # a program of its own
    assert float((low - eager).norm() / eager.norm()) < 0.02
    assert not torch.equal(low, high)
    torch.compiler.reset()


def test_devices_that_cannot_are_told(monkeypatch):
    with pytest.raises(MarbleError, match=r"capability 8\.9.*this is a CPU; set rollout.fp8=false"):
        fp8.check(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100")
    for has, fits in (((8, 0), False), ((8, 9), True), ((9, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, has=has: has)
        if fits:
            fp8.check(torch.device("cuda"))
        else:
            with pytest.raises(MarbleError, match=r"A100 has compute capability 8\.0"):
                fp8.check(torch.device("cuda"))


def test_recipes_that_cannot_are_told():
    for name, words, message in (
        (BASE, ["train.fsdp=true"], "train.fsdp shards them"),
        ("studio-grpo", [], "grpo needs the probabilities"),
    ):
        with pytest.raises(MarbleError, match=message):
            load_recipe(name, ["rollout.fp8=true", *words])
