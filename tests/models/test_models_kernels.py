"""GELU inside the product before it, and norms whose rows are held at once."""

import pytest
import torch
from diffusers.models.activations import GELU
from torch import nn
from torch.nn import functional as F

from marble.models import kernels


def fused(dtype=torch.bfloat16, approximate="tanh"):
    torch.manual_seed(0)
    model = nn.Sequential(GELU(16, 48, approximate=approximate).to(dtype))
    kernels.make_fused(model)
    return model[0]


def test_only_layers_in_16_bits_with_this_form_change():
    assert type(fused()) is kernels.FusedGELU
    assert type(fused(torch.float32)) is GELU
    assert type(fused(approximate="none")) is GELU


def test_a_pass_with_gradients_is_diffusers_own():
    layer, x = fused(), torch.randn(2, 5, 16).bfloat16()
    assert torch.equal(layer(x), F.gelu(F.linear(x, *layer.proj.parameters()), approximate="tanh"))
    assert layer(x.requires_grad_()).requires_grad


@pytest.mark.parametrize("compiled", [False, True])
def test_without_gradients_one_call_makes_both(compiled, monkeypatch):
    layer, x = fused(), torch.randn(2, 5, 16).bfloat16()
    calls = []
    plain = layer.gelu
    monkeypatch.setattr(layer, "gelu", lambda gate: calls.append(1) or plain(gate))
    call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    with torch.no_grad():
        found = call(x)
    wanted = F.gelu(F.linear(x.float(), *(p.float() for p in layer.proj.parameters())))
    assert not calls and found.shape == (2, 5, 48)
    assert torch.allclose(found.float(), wanted, atol=0.03)


def test_a_lora_on_the_layer_is_heeded():
    layer = fused()
    layer.proj = nn.Sequential(layer.proj)  # anything that is not a plain layer
    x = torch.randn(3, 16).bfloat16()
    with torch.no_grad():
        assert torch.equal(layer(x), F.gelu(layer.proj(x), approximate="tanh"))


def test_rows_of_a_norm_are_held_at_once_up_to_the_limit():
    from sympy import Integer, Symbol
    from torch._inductor.runtime.hints import ReductionHint

    class Features:
        def __init__(self, size, hint=ReductionHint.INNER):
            self.reduction_numel, self.hint = size, hint

        def get_reduction_hint(self):
            return self.hint

    chosen = kernels.choices()
    assert chosen.should_use_persistent_reduction(Features(Integer(1536)), False)
    asked = []
    base = type(chosen).__mro__[1]
    old = base.should_use_persistent_reduction
    base.should_use_persistent_reduction = staticmethod(lambda *a: asked.append(a) or False)
    try:
        for features in (
            Features(Integer(kernels.ROW + 1)),
            Features(Symbol("n")),
            Features(Integer(8), ReductionHint.OUTER),
        ):
            assert not chosen.should_use_persistent_reduction(features, False)
    finally:
        base.should_use_persistent_reduction = staticmethod(old)
    assert len(asked) == 3
