"""fp16 decodes where it draws the same picture, measured; else fp32 does."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from marble.models import load, pipeline
from marble.models.decoding import SAME, Decoder, compilable, levels
from marble.models.pipeline import PipelineAdapter
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


# -- compiled -------------------------------------------------------------------------------------


class Flat(nn.Module):
    def __init__(self, breaks=False):
        super().__init__()
        self.decoder = nn.Conv2d(3, 3, 1, bias=False).requires_grad_(False)
        self.decoder.weight.copy_(torch.eye(3)[:, :, None, None])
        self.decoder.breaks = breaks
        self.decoder.register_forward_pre_hook(self.before)

    @staticmethod
    def before(module, inputs):
        if module.breaks:
            torch._dynamo.graph_break()

    def decode(self, z, return_dict):
        return (self.decoder(z),)


class Backend:
    """Runs graphs as they are, `off` by so many levels; compiling fails from `fails` on."""

    def __init__(self, off=0.0, fails=99):
        self.off, self.fails, self.sizes = off, fails, []

    def __call__(self, graph, inputs):
        if len(self.sizes) >= self.fails:
            raise RuntimeError("no compiler here\nat all")
        picture = next(t for t in inputs if t.dim() == 4 and t.shape[-1] > 1)
        assert picture.is_contiguous(memory_format=torch.channels_last)
        self.sizes.append(len(picture))
        return lambda *given: [out + 2 / 255 * self.off for out in graph(*given)]


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def compiled(backend, half=None, **options):
    said = []
    return Decoder(Flat(**options), said.append, half, compiled=True, backend=backend), said


def test_one_program_decodes_full_and_short_batches(fresh_compiler):
    backend = Backend()
    decode, said = compiled(backend)
    for count in (9, 9, 6, 1):
        found = decode(latents(count), 9)
        assert found.shape == latents(count).shape and found.dtype == torch.float32
        assert torch.equal(found, latents(count).half().float())
    assert backend.sizes == [9] and decode.compiled
    assert len(said) == 2 and "compiled as it is first used" in said[0]
    assert said[1].startswith("decoding in fp16, compiled: 100.00 %")


def test_what_is_measured_is_what_decodes(fresh_compiler):
    """A compiled decoder that is off by three levels does not decode, though fp16 would."""
    decode, said = compiled(Backend(off=3.0))
    assert torch.equal(decode(latents()), latents())
    assert decode.half is False and "decoding in fp32: with fp16 only 0.00 %" in said[-1]


def test_a_compiler_that_fails_is_said_and_decoding_goes_on(fresh_compiler):
    decode, said = compiled(Backend(fails=0))
    for _ in range(2):
        assert torch.equal(decode(latents(), 9), latents().half().float())
    assert decode.half and not decode.compiled and len(said) == 3
    assert said[1] == (
        "decoding goes on without torch.compile, about half as fast (no compiler here)"
    )
    assert said[2].startswith("decoding in fp16: 100.00 %")


def test_a_decoder_that_breaks_does_not_run_in_parts_unseen(fresh_compiler):
    decode, said = compiled(Backend(), breaks=True)
    assert torch.equal(decode(latents(), 9), latents().half().float())
    assert not decode.compiled and "without torch.compile" in said[1]


@pytest.mark.parametrize("half", [None, True])
def test_a_later_failure_is_measured_anew_unless_the_decision_was_given(fresh_compiler, half):
    decode, said = compiled(Backend(off=0.9, fails=1), half)
    assert bool((decode(latents(9), 9) != latents(9).half().float()).all())
    assert torch.equal(decode(latents(16), 16), latents(16).half().float())
    assert decode.half and not decode.compiled
    measured = [line for line in said if line.startswith("decoding in fp16")]
    assert len(measured) == (0 if half else 2)


def test_errors_of_the_decoder_itself_are_its_own(fresh_compiler):
    decode, _ = compiled(Backend(), half=True)
    with pytest.raises(RuntimeError, match="channels"):
        decode(torch.zeros(1, 5, 2, 2))


def test_the_decoder_is_compiled_where_the_blocks_are(tmp_path):
    class Blocks:
        mode = "whole"

    adapter = load(str(SD3.tiny(tmp_path)))
    assert not adapter._gpu_decoder().compiled
    adapter.compiled = Blocks()
    assert adapter._gpu_decoder().compiled
    adapter.compiled.mode = "off"
    assert not adapter._gpu_decoder().compiled
    assert not compilable(nn.Module())
    video = nn.Module()
    video.decoder = nn.Conv3d(1, 1, 1)
    assert not compilable(video)


def test_a_decision_that_is_taken_over_twice_leaves_the_program(tmp_path):
    adapter = load(str(SD3.tiny(tmp_path)))
    adapter.device = torch.device("cuda")
    adapter.decide({"decoding in fp16": True})
    first = adapter._decoder
    adapter.decide({"decoding in fp16": True})
    assert adapter._decoder is first
    adapter.decide({"decoding in fp16": False})
    assert adapter._decoder is not first


@pytest.mark.parametrize(
    ("count", "sizes"), [(18, [9, 9]), (24, [9, 9, 9]), (9, [9]), (5, [8]), (3, [4]), (1, [1])]
)
def test_short_batches_are_filled_up_to_few_sizes(tmp_path, monkeypatch, count, sizes):
    adapter, asked = load(str(SD3.tiny(tmp_path))), []
    plain = PipelineAdapter._decoded
    monkeypatch.setattr(
        PipelineAdapter, "_decoded", lambda self, z, size: asked.append(size) or plain(self, z)
    )
    assert len(adapter.decode(torch.zeros(count, *adapter.latent_shape), batch_size=9)) == count
    assert asked == sizes


@pytest.mark.parametrize(
    ("count", "parts"), [(48, 8), (36, 9), (9, 9), (3, 9), (20, 5), (23, 9), (1, 9)]
)
def test_a_gpu_decodes_in_even_parts(count, parts):
    """Else pictures that nobody asked for fill the last one up; at most nine of 512 pixels."""
    assert pipeline._parts_of(count, 512) == parts
    assert pipeline._parts_of(count, 4096) == 1
