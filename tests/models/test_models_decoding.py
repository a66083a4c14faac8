"""fp16 decodes where it draws the same picture, measured; else fp32 does."""

import pytest
import torch
from torch import nn

from marble.models import load
from marble.models.decoding import SAME, Decoder, levels
from marble.models.sd3 import SD3


class Vae(nn.Module):
    """A decoder whose fp16 form is off by `error` levels in a `share` of its numbers."""

    def __init__(self, error=0.0, share=0.0, scale=1.0):
        super().__init__()
        self.encoder = nn.Linear(1000, 1000)
        self.weight = nn.Parameter(torch.ones(1), requires_grad=False)
        self.error, self.share, self.scale = error, share, scale
        self.calls = []

    def decode(self, z, return_dict):
        self.calls.append(z.dtype)
        assert z.dtype == self.weight.dtype
        picture = z * self.weight * self.scale
        if z.dtype == torch.float16:
            flat = picture.flatten()
            flat[: int(self.share * flat.numel())] += 2 / 255 * self.error
        return (picture,)


def latents(n=4):
    return torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0)) - 0.5


def decoder(*args, **options):
    vae, said = Vae(*args, **options), []
    return Decoder(vae, said.append), vae, said


@pytest.mark.parametrize(
    ("error", "share", "fits"), [(0.9, 1.0, True), (3.0, 0.0005, True), (3.0, 0.002, False)]
)
def test_the_measured_share_decides_once(error, share, fits):
    decode, vae, said = decoder(error, share)
    found = decode(latents())
    exact = levels(latents())
    within = ((levels(found) - exact).abs() <= 1).float().mean()
    assert found.dtype == torch.float32 and within >= SAME
    assert bool((found != latents()).any()) == fits
    assert len(said) == 1 and ("fp16: " in said[0]) == fits
    before = len(vae.calls)
    decode(latents())
    assert len(said) == 1 and len(vae.calls) == before + (0 if fits else 1)


def test_what_overflows_is_decoded_again():
    decode, _, _ = decoder(scale=1.0)
    decode(latents())
    far = latents() * 1e6  # beyond fp16
    assert torch.equal(decode(far), far)


def test_a_decoder_that_cannot_is_left_in_fp32():
    class Stubborn(Vae):
        def decode(self, z, return_dict):
            if z.dtype == torch.float16:
                raise RuntimeError("not implemented for Half")
            return super().decode(z, return_dict)

    vae = Stubborn()
    assert torch.equal(Decoder(vae, lambda line: None)(latents()), latents())


@pytest.mark.parametrize("half", [True, False])
def test_a_decision_that_is_given_is_not_made_again(half):
    """Pictures that would decide otherwise: those of a resumed run must not."""
    vae, said = Vae(*((3.0, 0.5) if half else (0.5, 0.5))), []
    decode = Decoder(vae, said.append, half)
    found = decode(latents())
    assert decode.half is half and not said
    assert bool((found != latents()).any()) == half


def test_an_adapter_tells_what_it_decided_and_takes_it_over(tmp_path):
    adapter = load(str(SD3.tiny(tmp_path)))
    assert adapter.decisions() == {}
    adapter.decide({"decoding in fp16": True, "of another version": True})
    assert adapter.decisions() == {}  # a CPU decodes in fp32
    adapter.device = torch.device("cuda")
    for half in (False, True):
        adapter.decide({"decoding in fp16": half})
        assert adapter._decoded(torch.zeros(1, 4, 4, 4)).dtype == torch.float32
        assert adapter.decisions() == {"decoding in fp16": half}


def test_the_copy_has_no_encoder():
    decode, vae, _ = decoder()
    decode(latents())
    assert sum(p.numel() for p in decode._low.parameters()) == 1
    assert vae.weight.dtype == torch.float32


def test_the_studio_s_decoder_passes():
    """On the CPU, in real fp16: the very pictures that the check is for."""
    from marble.models.build import build_adapter
    from marble.recipe import load_recipe

    adapter = build_adapter(load_recipe("studio"), torch.device("cpu"))
    cond = adapter.encode(["a red circle"] * 2)
    x = adapter.sample(cond, [1, 2], steps=4)
    said = []
    decode = Decoder(adapter.pipeline.vae, said.append)
    found = levels(decode(adapter._for_vae(x)))
    assert "decoding in fp16" in said[0]
    assert ((found - adapter.decode(x)).abs() <= 1).float().mean() >= SAME
