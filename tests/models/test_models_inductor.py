"""What torch's compiler is told: the same numbers, fewer reads and writes."""

import shutil
from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import nn

from marble.models import inductor
from marble.models.compiling import Compiled

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Modulated(nn.Module):
    """What blocks do around their products: six roundings to bf16."""

    def forward(self, x, scale, shift, gate):
        return x + gate * nn.functional.silu(x * (1 + scale) + shift)


def rounded_gradient(block, inputs):
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    found = block(*leaves)
    found.backward(torch.ones_like(found))
    return torch.cat([found.detach().flatten(), *(leaf.grad.flatten() for leaf in leaves)])


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_fused_operations_round_as_separate_ones_do():
    """Bit for bit, gradients too; with torch's own settings a third of the numbers differ."""
    config = pytest.importorskip("torch._inductor.config")
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(8, 96, generator=generator).bfloat16() for _ in range(4)]
    eager = rounded_gradient(Modulated(), inputs)
    differing = {}
    for emulated in (True, False):
        with config.patch(emulate_precision_casts=False):
            block, said = Modulated(), []
            compiled = Compiled([block], said.append)
            if not emulated:
                config.emulate_precision_casts = False
            found = rounded_gradient(block, inputs)
        assert compiled.eager == 0 and compiled.mode == "whole", said
        differing[emulated] = float((found != eager).float().mean())
        torch.compiler.reset()
    assert differing[True] == 0 and differing[False] > 0.2


class Row(nn.Module):
    def forward(self, x):
        return nn.functional.layer_norm(x, (x.shape[-1],))


def features(size, *indices):
    """What torch tells of a reduction that reads at these indices of row `x` and column `r`."""
    x, r = sympy.symbols("x r")
    reads = [
        SimpleNamespace(index=eval(text, {"x": x, "r": r}), var_names=(x, r)) for text in indices
    ]
    node = SimpleNamespace(read_writes=SimpleNamespace(reads=[*reads, SimpleNamespace()]))
    return SimpleNamespace(reduction_nodes=lambda: [node], reduction_numel=sympy.sympify(size))


@pytest.mark.parametrize(
    ("size", "indices", "held"),
    [
        (1536, ["1536*x + r"], True),
        (1536, ["1536*x + r", "r", "x", "(x // 1024) * 13824 + r"], True),
        (1536, ["1536*x + r", "x + 8 * r"], False),  # down a column
        (1536, ["x"], False),
        (8192, ["8192*x + r"], False),  # too wide
        ("n", ["4*x + r"], False),  # a width that is not known
    ],
)
def test_rows_of_an_activation_are_read_once(monkeypatch, size, indices, held):
    from torch._inductor.choices import InductorChoices

    monkeypatch.setattr(
        InductorChoices, "should_use_persistent_reduction", staticmethod(lambda *_: False)
    )
    assert (
        inductor._choices().should_use_persistent_reduction(features(size, *indices), False) == held
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_torch_takes_these_choices():
    config, own = pytest.importorskip("torch._inductor.config"), [].append
    with config.patch(inductor_choices_class=None):
        block = Row()
        found = Compiled([block], print)
        assert config.inductor_choices_class is inductor._choices
        x = torch.randn(4, 1536)
        assert torch.allclose(block(x), Row()(x), atol=1e-5)
        assert found.eager == 0
    with config.patch(inductor_choices_class=own):
        Compiled([Row()], print)
        assert config.inductor_choices_class == own  # a user's choices stay


class Heads(nn.Module):
    """Three layers that read one norm, each in the format of autocast."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 32) for _ in range(3))

    def forward(self, x):
        x = nn.functional.layer_norm(x, (96,))
        return torch.cat([layer(x) for layer in self.layers], dim=-1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_what_several_layers_read_is_cast_once():
    """Bit for bit; without it each layer has a copy of its own."""
    config = pytest.importorskip("torch._inductor.config")
    cast, counts = torch.ops.prims.convert_element_type.default, []

    def count(graph):
        found = [n.args for n in graph.nodes if n.target is cast and n.args[1] == torch.bfloat16]
        counts.append((len(found), len(set(found))))

    model, x = Heads(), torch.randn(5, 96)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        with config.patch(post_grad_custom_pre_pass=count, fx_graph_cache=False):
            torch.compile(model)(x)
        torch.compiler.reset()
        wanted = model(x)
        later = {"post_grad_custom_post_pass": count, "fx_graph_cache": False}
        with config.patch(post_grad_custom_pre_pass=None, **later):
            block = Heads()
            block.load_state_dict(model.state_dict())
            Compiled([block], print)
            assert torch.equal(block(x), wanted)
    (before, different), (after, still) = counts
    assert before == different + 2  # the norm's output, thrice
    assert after == still <= different


def test_a_user_s_own_pass_stays():
    config, own = pytest.importorskip("torch._inductor.config"), [].append
    with config.patch(post_grad_custom_pre_pass=own):
        Compiled([Row()], print)
        assert config.post_grad_custom_pre_pass == own
