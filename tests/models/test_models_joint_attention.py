"""The forms that blocks have where they are compiled: diffusers' numbers."""

import pytest
import torch
from diffusers.models.activations import GELU
from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0
from torch.nn import functional as F

from marble.models import load, lora
from marble.models.gelu import SigmoidGELU, sigmoid_gelu, use_sigmoid
from marble.models.joint_attention import JointAttention, use_joint_attention
from marble.models.lora_layer import keep_low
from marble.models.sd3 import SD3

PROMPTS = ["a cat", "two dogs"]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """All three makes of block: two attentions, one, and the last one without text output."""
    return SD3.tiny(tmp_path_factory.mktemp("deep"), layers=3)


def passes(adapter):
    """Velocities of the base and of v_old, and the trained LoRA's velocity and gradient."""
    cond, x = adapter.encode(PROMPTS), adapter.noise([1, 2])
    sigmas = torch.tensor([0.3, 0.8])
    found = []
    for name in ("base", "old"):
        with torch.no_grad(), adapter.using(name):
            found.append(adapter.velocity(x, sigmas, cond))
    v = adapter.velocity(x, sigmas, cond)
    v.backward(torch.sin(torch.arange(v.numel()).view_as(v) * 1.0))
    return [*found, v.detach(), *(p.grad for p in adapter.lora_parameters().values())]


def prepared(folder, randomise, dtype="fp32"):
    adapter = load(str(folder), dtype=dtype)
    adapter.add_lora(4, 8)
    randomise(adapter, seed=1)
    randomise(adapter, seed=2, name="old")
    return adapter


def test_numbers_are_those_of_diffusers(deep, randomise):
    """Bit for bit in fp32, gradients too."""
    stock, ours = prepared(deep, randomise), prepared(deep, randomise)
    use_joint_attention(ours.transformer)
    kinds = [m.processor for m in ours.transformer.modules() if isinstance(m, Attention)]
    assert len(kinds) == 4 and all(type(kind) is JointAttention for kind in kinds)
    for a, b in zip(passes(stock), passes(ours)):
        assert torch.equal(a, b)


def test_in_bf16_it_is_no_further_from_fp32(deep, randomise):
    """With the LoRAs of q, k and v joined, whose roundings are not peft's."""
    exact = passes(prepared(deep, randomise))
    runs = []
    for joined in (False, True):
        adapter = prepared(deep, randomise, dtype="bf16")
        layers = [layer for _, layer in lora.lora_layers(adapter.transformer)]
        keep_low(adapter.transformer, layers, torch.bfloat16)
        if joined:
            use_joint_attention(adapter.transformer)
        runs.append(passes(adapter))
    errors = [
        [float((a - b).norm() / b.norm()) for a, b in zip(run[:3], exact)]
        + [float((torch.cat([g.flatten() for g in run[3:]]) - flat).norm() / flat.norm())]
        for run in runs
        for flat in [torch.cat([g.flatten() for g in exact[3:]])]
    ]
    for stock, ours in zip(*errors):
        assert 0 < ours < 1.1 * stock


def test_other_processors_stay(deep):
    class Own(JointAttnProcessor2_0):
        pass

    model = load(str(deep)).transformer
    model.transformer_blocks[0].attn.set_processor(Own())
    use_joint_attention(model)
    assert type(model.transformer_blocks[0].attn.processor) is Own
    assert type(model.transformer_blocks[1].attn.processor) is JointAttention


def test_only_a_compiled_model_has_them(deep):
    plain, compiled = load(str(deep)), load(str(deep), compile=True)
    for adapter, wanted in ((plain, False), (compiled, True)):
        modules = list(adapter.transformer.modules())
        assert any(type(m) is SigmoidGELU for m in modules) == wanted
        attentions = [m for m in modules if isinstance(m, Attention)]
        assert all((type(m.processor) is JointAttention) == wanted for m in attentions)


def test_the_gelu_is_the_tanh_approximation():
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e4, 1e4, 0.0])]).double()
    exact = F.gelu(x, approximate="tanh")
    found = sigmoid_gelu(x.float())
    assert float((found.double() - exact).abs().max() / 20) < 1e-6
    narrow = x[:4001].bfloat16()
    assert sigmoid_gelu(narrow).dtype == torch.bfloat16
    wanted = F.gelu(narrow, approximate="tanh")
    # Far below 0 torch's own cancels: 1 + tanh u. Elsewhere a last bit where fp32's error decides.
    differ = (sigmoid_gelu(narrow) != wanted)[wanted.abs() > 1e-4]
    assert float(differ.double().mean()) < 0.01


def test_gradients_of_the_gelu():
    x = torch.linspace(-8, 8, 999).requires_grad_()
    (found,) = torch.autograd.grad(sigmoid_gelu(x).sum(), x)
    (wanted,) = torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)
    assert torch.allclose(found, wanted, atol=2e-6)


def test_uncompiled_it_is_diffusers_own():
    ours, other = GELU(8, 8, approximate="tanh"), GELU(8, 8)
    x = torch.randn(3, 8)
    before = ours(x)
    use_sigmoid(ours)
    use_sigmoid(other)
    assert type(ours) is SigmoidGELU and type(other) is GELU
    assert torch.equal(ours(x), before)
    compiled = torch.compile(ours, backend="eager", fullgraph=True)(x)
    assert torch.allclose(compiled, before, atol=1e-6)
