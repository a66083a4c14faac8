"""The CPU's decoder: cheaper convolutions, the same pictures."""

import pytest
import torch
from diffusers.models.upsampling import Upsample2D
from torch import nn
from torch.nn import functional as F

from marble.models import cpu_decoding
from marble.models.build import build_adapter
from marble.models.cpu_decoding import CpuDecoder, FoldedUpsample, LowConv, fast_vae, folded, same
from marble.models.decoding import SAME, levels
from marble.recipe import load_recipe


@torch.no_grad()
@pytest.mark.parametrize(("height", "width", "bias"), [(4, 4, True), (1, 3, True), (5, 2, False)])
def test_a_folded_enlarging_is_enlarging_and_convolution(height, width, bias):
    torch.manual_seed(0)
    module = Upsample2D(6, use_conv=True, out_channels=5, bias=bias).double()
    x = torch.randn(3, 6, height, width, dtype=torch.float64)
    wanted = module(x)
    assert torch.equal(wanted, module.conv(F.interpolate(x, scale_factor=2.0, mode="nearest")))
    module.__class__ = FoldedUpsample
    module.conv.weight = nn.Parameter(folded(module.conv.weight.detach()))
    assert module.conv.weight.shape == (20, 6, 2, 2)
    assert torch.allclose(module(x), wanted, atol=1e-12)


@pytest.fixture(scope="module")
def adapter():
    return build_adapter(load_recipe("studio", ["train.precision=fp32"]), torch.device("cpu"))


@pytest.fixture(scope="module")
def latents(adapter):
    cond = adapter.encode(["a red circle", 'a sign that says "TEA"'])
    return adapter._for_vae(adapter.sample(cond, [1, 2], steps=4))


@torch.no_grad()
def test_the_studio_s_pictures_stay_the_same(adapter, latents):
    said = []
    decode = CpuDecoder(adapter.pipeline.vae, said.append)
    plain = adapter.pipeline.vae.decode(latents, return_dict=False)[0]
    found = decode(latents)
    assert found.dtype == torch.float32 and not torch.equal(found, plain)
    assert ((levels(found) - levels(plain)).abs() <= 1).double().mean() >= SAME
    assert len(said) == 1 and said[0].startswith("decoding partly in bf16: ")


def test_what_is_low_is_inside_the_branches(adapter):
    vae = adapter.pipeline.vae
    decoder = fast_vae(vae).decoder
    low = [name for name, m in decoder.named_modules() if type(m) is LowConv]
    assert len(low) == 20 and all(".resnets." in name for name in low)
    assert sum(type(m) is FoldedUpsample for m in decoder.modules()) == 3
    assert decoder.conv_in.weight.dtype == decoder.conv_out.weight.dtype == torch.float32
    assert {p.dtype for p in vae.parameters()} == {torch.float32}


@torch.no_grad()
def test_a_decoder_that_would_draw_other_pictures_stays_in_fp32(adapter, latents, monkeypatch):
    class Coarse(LowConv):
        def forward(self, x):
            return super().forward(x) * 1.05

    vae, said = adapter.pipeline.vae, []
    monkeypatch.setattr(cpu_decoding, "LowConv", Coarse)
    assert same(vae, fast_vae(vae)) < SAME
    decode = CpuDecoder(vae, said.append)
    assert torch.equal(decode(latents), vae.decode(latents, return_dict=False)[0])
    assert said[0].startswith("decoding in fp32: partly in bf16 only ")


@torch.no_grad()
def test_decoders_of_other_makes_are_used_as_they_are():
    class Other(nn.Module):
        def decode(self, z, return_dict):
            return (z * 2,)

    assert torch.equal(CpuDecoder(Other(), pytest.fail)(torch.ones(1)), torch.full((1,), 2.0))


def test_an_adapter_in_bf16_decodes_so(adapter):
    other = build_adapter(load_recipe("studio", ["train.precision=bf16"]), torch.device("cpu"))
    other.say = lambda line: None
    x = adapter.noise([3])
    one, two = adapter.decode(x), other.decode(x)
    assert isinstance(other._decoder, CpuDecoder) and adapter._decoder is None
    assert not torch.equal(one, two)
    assert ((one.int() - two.int()).abs() <= 1).double().mean() > 0.99
