"""GELU in the forms that compiled blocks take."""

import pytest
import torch
from diffusers.models.activations import GELU
from torch import nn
from torch.nn import functional as F

from marble.models import gelu
from marble.models.compiling import Compiled

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def layer(approximate="tanh", dtype=torch.float32):
    torch.manual_seed(0)
    found = nn.Sequential(GELU(8, 32, approximate=approximate)).to(dtype).requires_grad_(False)
    gelu.use_sigmoid(found)
    return found


def test_the_form_without_tanh():
    x = torch.linspace(-8, 8, 1001)
    assert torch.allclose(gelu.sigmoid_gelu(x), F.gelu(x, approximate="tanh"), atol=1e-6)


def test_only_the_tanh_form_is_replaced():
    assert type(layer()[0]) is gelu.SigmoidGELU and type(layer("none")[0]) is GELU


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_operation_gives_what_two_give(dtype):
    x = torch.randn(3, 5, 8, dtype=dtype)
    proj = layer(dtype=dtype)[0].proj
    found = gelu.linear_gelu(x, proj.weight, proj.bias)
    assert found.shape == (3, 5, 32) and found.dtype == dtype
    two = F.gelu(proj(x).float(), approximate="tanh").to(dtype)
    assert torch.allclose(found.float(), two.float(), atol=1e-6, rtol=0.02)
    torch.library.opcheck(gelu.linear_gelu, (x, proj.weight, proj.bias))


def test_product_and_gelu_are_one_only_while_drawing():
    """In the compiled program itself."""
    seen = []

    def backend(graph, inputs):
        seen.append(any("linear_gelu" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    model, x = layer(dtype=torch.bfloat16), torch.randn(3, 5, 8)
    plain = model[0].proj
    compiled = Compiled([model], [].append, backend=backend)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outside = model.forward(x)
        with gelu.drawing(model):
            inside = model.forward(x)
        model.forward(x)
    assert seen == [False, True], "and nothing is compiled anew afterwards"
    assert compiled.mode == "whole" and compiled.eager == 0
    assert inside.dtype == outside.dtype == torch.bfloat16
    assert torch.allclose(inside.float(), outside.float(), atol=1e-3, rtol=0.02)
    assert model[0].proj is plain and type(model[0]) is gelu.SigmoidGELU


@pytest.mark.parametrize(
    "why", ["another format", "no bias", "another layer", "another kind of weight"]
)
def test_other_projections_stay_as_they_are(why, monkeypatch):
    monkeypatch.setattr(gelu, "linear_gelu", lambda *given: pytest.fail("they are joined"))
    model, x = layer(), torch.randn(2, 3, 8)
    proj = model[0].proj
    if why == "another format":
        x = x.bfloat16()
    elif why == "no bias":
        proj.bias = None
    elif why == "another kind of weight":
        proj.weight.__class__ = type("Quantised", (nn.Parameter,), {})
    else:
        proj.__class__ = type("Quantised", (nn.Linear,), {})
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=why == "another format")
    with torch.no_grad(), autocast:
        outside = model(x)
        with gelu.drawing(model):
            assert torch.equal(model(x), outside)


def test_the_class_returns_after_an_error():
    model = layer()
    with pytest.raises(KeyError), gelu.drawing(model):
        assert type(model[0]) is gelu.JoinedGELU
        raise KeyError
    assert type(model[0]) is gelu.SigmoidGELU
