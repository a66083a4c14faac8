"""The SD3 adapter against diffusers' own pipeline."""

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline

from marble.errors import MarbleError
from marble.models import load
from marble.models.sd3 import SD3

PROMPTS = ["a cat", 'a sign that says "TEA"', ""]
SEEDS = [5, 2**62 + 7, 9]


def stock(folder, t5):
    absent = {} if t5 else {"text_encoder_3": None, "tokenizer_3": None}
    pipeline = StableDiffusion3Pipeline.from_pretrained(folder, **absent)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def generators():
    return [torch.Generator().manual_seed(seed) for seed in SEEDS]


@pytest.mark.parametrize("t5", [False, True])
@pytest.mark.parametrize("guidance", [1.0, 3.5])
def test_euler_gives_the_pictures_of_diffusers(folder, folder_t5, t5, guidance):
    path = folder_t5 if t5 else folder
    options = {"num_inference_steps": 6, "guidance_scale": guidance, "max_sequence_length": 12}
    pipeline = stock(path, t5)
    latents = pipeline(PROMPTS, generator=generators(), output_type="latent", **options).images
    pictures = pipeline(PROMPTS, generator=generators(), output_type="np", **options).images
    adapter = load(str(path), max_sequence_length=12, truncate_prompts=True)
    cond = adapter.encode(PROMPTS)
    ours = adapter.sample(cond, SEEDS, steps=6, sampler="euler", guidance=guidance)
    assert (ours - latents).abs().max() < 1e-4
    expected = (pictures * 255).round().astype(np.uint8).transpose(0, 3, 1, 2)
    assert np.abs(adapter.decode(ours).numpy().astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    "options",
    [{"shift": 1.0}, {"shift": 3.0}, {"use_dynamic_shifting": True}, {"use_karras_sigmas": True}],
)
def test_grid_is_that_of_diffusers(tmp_path, options):
    shift = options.pop("shift", 1.0)
    adapter = load(str(SD3.tiny(tmp_path, shift=shift, scheduler=options)))
    pipeline = stock(tmp_path, t5=False)
    pipeline("x", num_inference_steps=7, guidance_scale=1.0, output_type="latent")
    grid = adapter.grid(7)
    assert torch.equal(grid, pipeline.scheduler.sigmas)
    assert grid.dtype == torch.float32 and len(grid) == 8 and grid[-1] == 0
    timesteps = grid[:-1] * 1000
    assert torch.equal(timesteps, pipeline.scheduler.timesteps)
    assert isinstance(pipeline.scheduler, FlowMatchEulerDiscreteScheduler)


def test_velocity_uses_float_timesteps(adapter):
    cond = adapter.encode(["a cat"])
    x = adapter.noise([1])
    near = adapter.velocity(x, torch.tensor([0.5000]), cond)
    nearer = adapter.velocity(x, torch.tensor([0.5004]), cond)
    assert (near - nearer).abs().max() > 0  # an integer timestep would be 500 for both


@pytest.mark.parametrize("sampler", ["dpm", "euler"])
def test_a_sample_is_the_same_alone_and_in_any_batch(adapter, sampler):
    cond = adapter.encode(PROMPTS)
    together = adapter.sample(cond, SEEDS, steps=4, sampler=sampler)
    for i, seed in enumerate(SEEDS):
        alone = adapter.sample(cond[i], [seed], steps=4, sampler=sampler)
        assert torch.allclose(alone[0], together[i], atol=1e-5)
    in_parts = adapter.sample(cond, SEEDS, steps=4, sampler=sampler, batch_size=2)
    assert torch.allclose(in_parts, together, atol=1e-5)
    assert torch.equal(adapter.noise(SEEDS)[1], adapter.noise(SEEDS[1:2])[0])


def test_sampling_leaves_the_global_random_state_alone(adapter):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    adapter.sample(adapter.encode(["a"]), [1], steps=2)
    assert torch.equal(before, torch.get_rng_state())


def test_decode_in_parts_is_uint8(adapter):
    latents = adapter.noise([1, 2, 3])
    pictures = adapter.decode(latents)
    assert pictures.dtype == torch.uint8 and pictures.shape == (3, 3, 16, 16)
    in_parts = adapter.decode(latents, batch_size=2)
    assert (pictures.int() - in_parts.int()).abs().max() <= 1  # a rounding of the same value


def test_prompts_are_encoded_once(adapter, monkeypatch):
    calls = []
    encode = adapter._encode
    monkeypatch.setattr(adapter, "_encode", lambda p: calls.append(list(p)) or encode(p))
    first = adapter.encode(["a", "b", "a"])
    second = adapter.encode(["b", "c"])
    assert [list(dict.fromkeys(call)) for call in calls] == [["a", "b"], ["c"]]
    assert torch.equal(first.tensors["prompt_embeds"][1], second.tensors["prompt_embeds"][0])
    assert torch.equal(first.tensors["prompt_embeds"][0], first.tensors["prompt_embeds"][2])


def test_an_encoding_does_not_depend_on_what_was_new_with_it(adapter):
    """Exact resume and any number of processes: they find other prompts in the cache."""
    prompts = [f"prompt {i}" for i in range(40)]
    together = adapter.encode(prompts)
    adapter.cache = type(adapter.cache)()
    for i in (0, 7, 39):
        alone = adapter.encode([prompts[i]])
        for name, tensor in alone.tensors.items():
            assert torch.equal(tensor[0], together.tensors[name][i])


def test_offloaded_encoders_visit_the_device_layer_by_layer(folder_t5):
    plain = load(str(folder_t5)).encode(["a", "b"])
    adapter = load(str(folder_t5), offload_encoders=True)
    encoders = [getattr(adapter.pipeline, n) for n in ("text_encoder", "text_encoder_3")]
    here = []  # layers that have weights while one of the T5's works

    def count(*_):
        here.append(sum(any(not p.is_meta for p in m.parameters(False)) for m in layers))

    layers = [m for m in encoders[1].modules() if list(m.parameters(False))]
    for layer in layers:
        original = layer.forward
        layer.forward = lambda *a, original=original, **k: (count(), original(*a, **k))[1]
    for _ in range(2):  # and again, for new prompts
        adapter.cache = type(adapter.cache)()
        cond = adapter.encode(["a", "b"])
        for name, tensor in cond.tensors.items():
            assert torch.equal(tensor, plain.tensors[name])
        assert all(p.is_meta for encoder in encoders for p in encoder.parameters())
    assert here and len(layers) > 5
    # The tables of positions and of words may wait for whoever shares them.
    assert max(here) <= 2


def test_cache_is_bounded(adapter):
    adapter.encode(["a"])
    adapter.cache.max_bytes = 2 * adapter.cache.bytes
    adapter.encode(["b", "c", "d"])
    assert len(adapter.cache) == 2 and "d" in adapter.cache and "a" not in adapter.cache
    assert len(adapter.encode(["a", "b", "c", "d"])) == 4  # more than fit still encode


def test_prompt_too_long_names_prompt_and_count(folder_t5):
    adapter = load(str(folder_t5), max_sequence_length=100)
    adapter.check_prompts(["x" * 98])
    with pytest.raises(MarbleError, match=r'"xxx.*…" has 141 tokens, the text encoders take 100'):
        adapter.encode(["short", "x" * 139])
    clip_only = load(str(folder_t5), max_sequence_length=2)
    with pytest.raises(MarbleError, match="has 80 tokens, the text encoders take 77"):
        clip_only.check_prompts(["x" * 78])
    truncating = load(str(folder_t5), max_sequence_length=10, truncate_prompts=True)
    assert len(truncating.encode(["x" * 500])) == 1
    with pytest.raises(MarbleError, match="max_sequence_length: at most 512"):
        load(str(folder_t5), max_sequence_length=600)


def test_resolution(folder):
    adapter = load(str(folder), resolution=24)
    assert adapter.latent_shape == (4, 12, 12)
    assert adapter.decode(adapter.noise([0])).shape == (1, 3, 24, 24)
    with pytest.raises(MarbleError, match="must be a multiple of 2"):
        load(str(folder), resolution=25)
    with pytest.raises(MarbleError, match="takes at most 32"):
        load(str(folder), resolution=64)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_low_precision_base_keeps_fp32_lora_and_interface(folder, dtype):
    exact, low = load(str(folder)), load(str(folder), dtype=dtype)
    low.add_lora(4, 8)
    weight = low.transformer.transformer_blocks[0].attn.to_q.base_layer.weight
    assert weight.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert {p.dtype for p in low.lora_parameters().values()} == {torch.float32}
    cond, cond_low = exact.encode(["a cat"]), low.encode(["a cat"])
    assert cond_low.tensors["prompt_embeds"].dtype == weight.dtype
    x, sigma = exact.noise([1]), torch.tensor([0.7])
    v, v_low = exact.velocity(x, sigma, cond), low.velocity(x, sigma, cond_low)
    assert v_low.dtype == torch.float32
    assert 0 < (v - v_low).abs().max() < 0.05 * v.abs().max()
    v_low.square().mean().backward()
    grads = [p.grad for p in low.lora_parameters().values() if p.grad is not None]
    assert grads and all(g.dtype == torch.float32 and g.isfinite().all() for g in grads)


def test_gradient_checkpointing_changes_nothing(folder, randomise):
    grads = []
    for checkpointing in (False, True):
        adapter = load(str(folder), gradient_checkpointing=checkpointing)
        adapter.add_lora(4, 8)
        randomise(adapter)
        v = adapter.velocity(adapter.noise([1]), torch.tensor([0.4]), adapter.encode(["a"]))
        v.square().mean().backward()
        grads.append([p.grad for p in adapter.lora_parameters().values()])
    assert any(g.abs().max() > 0 for g in grads[0])
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*grads))


def test_prompts_stay_on_the_device_and_the_least_used_leave(folder, monkeypatch):
    """The device is a word here; its tensors are on the CPU like the others."""
    from marble.models import base

    adapter = load(str(folder))
    wanted = adapter.encode(["a", "b", "a"])
    resident = adapter._on_device = base.PromptCache(adapter.cache.bytes)  # two prompts
    monkeypatch.setattr(adapter, "device", type("Gpu", (), {"type": "cuda"})())
    found = adapter.encode(["a", "b", "a"])
    assert all(torch.equal(found.tensors[k], wanted.tensors[k]) for k in wanted.tensors)
    kept = resident.get("a").tensors
    adapter.encode(["b"])
    adapter.encode(["a"])
    assert resident.get("a").tensors is kept and len(resident) == 2
    monkeypatch.setattr(adapter, "device", torch.device("cpu"))
    adapter.prepare(["c"])
    monkeypatch.setattr(adapter, "device", type("Gpu", (), {"type": "cuda"})())
    adapter.encode(["c"])
    assert "c" in resident and "b" not in resident
