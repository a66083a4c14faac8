"""bf16 on a CPU: blocks as diffusers has them, and no more error than autocast's own."""

import pytest
import torch
from diffusers.models.activations import GELU
from diffusers.models.attention_processor import JointAttnProcessor2_0
from diffusers.models.normalization import RMSNorm

from marble.models import cpu, load


def passes(folder, randomise, precision, targets=None):
    """An adapter with a LoRA that does something, and what its passes give."""
    adapter = load(str(folder), precision=precision)
    adapter.add_lora(4, 8, targets=targets)
    randomise(adapter, seed=1)
    adapter.load_lora_state("old", adapter.lora_state())
    return adapter


def point(adapter, count=6):
    x = adapter.noise(range(count))
    return x, torch.linspace(0.05, 0.95, count), adapter.encode(["a cat", "a red dog"] * 3)


def velocity_and_gradient(adapter):
    x, sigma, cond = point(adapter)
    with adapter.using("default"):
        v = adapter.velocity(x, sigma, cond)
        (v * torch.linspace(-1, 1, v.numel()).view_as(v).sin()).sum().backward()
    grads = [p.grad.flatten() for p in adapter.lora_parameters().values()]
    return v.detach(), torch.cat(grads)


def drawn(adapter, name="old"):
    x, sigma, cond = point(adapter)
    with torch.no_grad(), adapter.drawing(name):
        return adapter.velocity(x, sigma, cond)


def error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture
def autocast(folder, randomise, monkeypatch):
    """Plain bf16 autocast, as it would be without this module."""
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "make_fast", lambda model: None)
        return passes(folder, randomise, "bf16")


def test_blocks_are_those_of_diffusers(folder, randomise, monkeypatch):
    """In fp32, where both are exact to the last bits: one block has two attentions, the last one
    leaves the text out."""
    adapter = passes(folder, randomise, "fp32")
    for module in adapter.transformer.modules():
        if type(module) is RMSNorm:
            module.weight.data.uniform_(0.5, 2)
    wanted, wanted_grad = velocity_and_gradient(adapter)
    monkeypatch.setattr(torch.nn.Linear, "to", lambda self, dtype: self)
    cpu.make_fast(adapter.transformer)
    kinds = [type(module) for module in adapter.transformer.modules()]
    processors = [m.processor for m in adapter.transformer.modules() if hasattr(m, "processor")]
    assert kinds.count(cpu.LeanBlock) == 2 and len(processors) == 3
    assert {type(processor) for processor in processors} == {cpu.WideJointAttention}
    for parameter in adapter.lora_parameters().values():
        parameter.grad = None
    found, grad = velocity_and_gradient(adapter)
    assert error(found, wanted) < 1e-6 and error(grad, wanted_grad) < 1e-5


def test_the_norm_s_gradient_is_autograd_s():
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(8, dtype=torch.float64) + 0.5
    assert torch.autograd.gradcheck(lambda x: cpu.WideRMSNorm.apply(x, weight, 1e-6), (x,))
    y = torch.randn(2, 3, 1, 8).bfloat16()
    norm = RMSNorm(8, 1e-6)
    norm.weight.data.copy_(weight)
    found = cpu.WideRMSNorm.apply(y, norm.weight.detach(), 1e-6)
    assert found.dtype == torch.float32 and torch.allclose(found, norm(y), atol=1e-6)


def test_no_more_error_than_autocast(folder, randomise, autocast):
    exact, exact_grad = velocity_and_gradient(passes(folder, randomise, "fp32"))
    plain, plain_grad = velocity_and_gradient(autocast)
    fast = passes(folder, randomise, "bf16")
    found, grad = velocity_and_gradient(fast)
    assert 0 < error(found, exact) < 1.15 * error(plain, exact) < 0.05
    assert 0 < error(grad, exact_grad) < 1.15 * error(plain_grad, exact_grad) < 0.2
    # Drawn with the LoRA merged and GELUs inside their products.
    assert error(drawn(fast), exact) < 1.3 * error(plain, exact)


def test_a_model_whose_own_format_is_bf16(folder, randomise):
    """Its norms have bf16 weights, and attention is fp32 all the same."""
    adapter = load(str(folder), dtype="bf16")
    adapter.add_lora(4, 8)
    randomise(adapter, seed=1)
    exact = velocity_and_gradient(passes(folder, randomise, "fp32"))[0]
    assert 0 < error(velocity_and_gradient(adapter)[0], exact) < 0.05


def test_equal_weights_give_equal_passes_in_training(folder, randomise):
    """v_θ with gradients, v_old without: the loss is about their difference."""
    adapter = passes(folder, randomise, "bf16")
    v, _ = velocity_and_gradient(adapter)
    x, sigma, cond = point(adapter)
    with torch.no_grad(), adapter.using("old"):
        assert torch.equal(adapter.velocity(x, sigma, cond), v)


def test_gelus_are_fused_only_while_drawing(folder, randomise, monkeypatch):
    adapter = passes(folder, randomise, "bf16")
    calls = []
    fused = cpu._fused_gelu
    monkeypatch.setattr(cpu, "_fused_gelu", lambda *given: calls.append(1) or fused(*given))
    cpu._has_fused_gelu.cache_clear()
    with_fused = drawn(adapter)
    assert cpu._has_fused_gelu() and len(calls) == 1 + 3  # the check; two blocks, one without text
    velocity_and_gradient(adapter)
    assert len(calls) == 4
    assert not any(type(m) is cpu.FusedGELU for m in adapter.transformer.modules())
    assert any(type(m) is GELU for m in adapter.transformer.modules())

    monkeypatch.setattr(cpu, "_has_fused_gelu", lambda: False)  # another build of torch
    assert 0 < error(with_fused, drawn(adapter)) < 0.02


def test_a_torch_without_the_operation_is_noticed(monkeypatch):
    def refuses(*given):
        raise RuntimeError("mkldnn is not built")

    monkeypatch.setattr(cpu, "_fused_gelu", refuses)
    cpu._has_fused_gelu.cache_clear()
    assert not cpu._has_fused_gelu()
    monkeypatch.setattr(cpu, "_fused_gelu", lambda x, weight, bias: x)  # does something else
    cpu._has_fused_gelu.cache_clear()
    assert not cpu._has_fused_gelu()
    cpu._has_fused_gelu.cache_clear()


def test_a_lora_on_the_layer_before_a_gelu_counts(folder, randomise):
    adapter = passes(folder, randomise, "bf16", targets=["ff.net.0.proj"])
    randomise(adapter, scale=1.0)
    adapter.load_lora_state("old", adapter.lora_state())
    wanted = velocity_and_gradient(adapter)[0]
    assert error(drawn(adapter), wanted) < 0.03 < error(drawn(adapter, "base"), wanted)


def test_fp32_is_left_alone(folder, randomise):
    adapter = passes(folder, randomise, "fp32")
    kinds = {type(m.processor) for m in adapter.transformer.modules() if hasattr(m, "processor")}
    assert kinds == {JointAttnProcessor2_0}
    assert {p.dtype for p in adapter.transformer.parameters()} == {torch.float32}
    x, sigma, cond = point(adapter)
    with torch.no_grad(), adapter.using("old"):
        assert torch.equal(adapter.velocity(x, sigma, cond), drawn(adapter))


def test_a_base_in_bf16_draws_and_trains(folder, randomise):
    """Its norms have bf16 weights, too; attention takes query, key and value in one format."""
    adapter = load(str(folder), precision="bf16", dtype="bf16")
    adapter.add_lora(4, 8)
    randomise(adapter, seed=1)
    assert any(
        type(getattr(m, "processor", None)) is cpu.WideJointAttention
        for m in adapter.transformer.modules()
    )
    found, grad = velocity_and_gradient(adapter)
    assert found.isfinite().all() and grad.isfinite().all() and grad.norm() > 0
