"""Every family against diffusers' own pipeline and against literal gradients, on tiny weights."""

import json
import math
import shutil

import diffusers
import numpy as np
import pytest
import torch
from _families import FAMILIES, PROMPTS, SEEDS, STEPS, Case, randomise
from torch.overrides import TorchFunctionMode

from marble.errors import MarbleError
from marble.jacobian import Jacobian
from marble.models import check, load
from marble.models.folder import pipeline_index

K = 5


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    family = FAMILIES[request.param]
    return Case(family, family.tiny(tmp_path_factory.mktemp(request.param)))


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_pictures_are_those_of_stock_diffusers(case, guidance):
    ours = case.ours(guidance)
    for i, (prompt, seed) in enumerate(zip(PROMPTS, SEEDS)):
        assert abs(ours[i] - case.picture(prompt, seed, guidance)).max() <= 1
    # Prompt and guidance matter, else agreement would say nothing about them.
    assert abs(ours[0] - case.picture("two dogs", SEEDS[0], guidance)).max() > 1
    assert abs(ours[0] - case.picture(PROMPTS[0], SEEDS[0], 5.0 - guidance)).max() > 1


def test_noise_levels_are_the_pipelines_own(case):
    case.picture(PROMPTS[0], 1, 1.0)
    grid = case.shared.grid(STEPS)
    assert torch.equal(grid, case.stock.scheduler.sigmas)
    assert grid.dtype == torch.float32 and len(grid) == STEPS + 1 and grid[-1] == 0


class InDouble(TorchFunctionMode):
    """Library code that goes to fp32 on its own (norms, rotations) stays in fp64 here."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if args and getattr(args[0], "dtype", None) is torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            if func is torch.Tensor.to and torch.float32 in args[1:]:
                return args[0]
        return func(*args, **(kwargs or {}))


def test_five_gradients_are_those_of_five_backwards(case):
    """In fp64, with prompts of several lengths and rewards that do not apply everywhere."""
    adapter = case.adapter()
    adapter.add_lora(rank=2, alpha=4)
    randomise(adapter)
    adapter.transformer.to(torch.float64)
    adapter.dtype = torch.float64
    prompts = [*PROMPTS, "the sea at night"]
    g = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    n, cond = len(prompts), adapter.encode(prompts)
    x, sigma = normal(n, *adapter.latent_shape), torch.tensor([0.2, 0.6, 0.9]).double()
    plus, minus = normal(*x.shape), normal(*x.shape)
    r = torch.rand(K, n, generator=g, dtype=torch.float64)
    weight = (torch.rand(K, n, generator=g) < 0.7).double() / n
    weight[:, 0] = 1 / n
    jac = Jacobian(adapter.transformer, K)
    with InDouble():
        with jac.recording(n):
            v = adapter.velocity(x, sigma, cond)
        jac.backward(v, [(plus, weight * r), (minus, weight * (1 - r))])
        v = adapter.velocity(x, sigma, cond)
    assert v.dtype == torch.float64
    trained = list(adapter.lora_parameters().values())
    for k in range(K):
        shares = (weight[k] * r[k]).view(-1, 1, 1, 1), (weight[k] * (1 - r[k])).view(-1, 1, 1, 1)
        loss = (v * (shares[0] * plus + shares[1] * minus)).sum()
        literal = torch.autograd.grad(loss, trained, retain_graph=True, materialize_grads=True)
        truth = jac.flatten(dict(zip(trained, literal)))
        found = jac.combine(torch.eye(K, dtype=torch.float64)[k])
        assert (found - truth).norm() <= 1e-12 * truth.norm() and truth.norm() > 0


def test_a_sample_is_the_same_alone_and_in_any_batch(case):
    adapter = case.shared
    prompts, seeds = [*PROMPTS, ""], [*SEEDS, 9]
    together = adapter.sample(adapter.encode(prompts), seeds, steps=2, guidance=2.0)
    for i in range(3):
        alone = adapter.sample(
            adapter.encode(prompts[i : i + 1]), seeds[i : i + 1], steps=2, guidance=2.0
        )
        assert torch.allclose(alone[0], together[i], atol=2e-5)


def test_an_encoding_does_not_depend_on_what_was_new_with_it(case):
    adapter = case.adapter()
    adapter.encode([*PROMPTS, "a very much longer prompt than the others are"])
    among = adapter.encode(PROMPTS[:1])
    adapter.cache = type(adapter.cache)()
    alone = adapter.encode(PROMPTS[:1])
    for name, tensor in alone.tensors.items():
        assert torch.equal(tensor, among.tensors[name]), name


def test_sizes_are_those_of_the_model(case):
    facts = case.family.facts(case.folder)
    adapter = case.adapter()
    for name in ("transformer", "vae"):
        part = getattr(adapter.pipeline, name)
        assert facts.parts[name] == sum(v.numel() for v in part.state_dict().values())
    assert facts.latents(32) == math.prod(adapter.latent_shape)
    adapter.add_lora(rank=3, alpha=3)
    count = sum(p.numel() for p in adapter.lora_parameters().values())
    assert facts.lora_parameters(3) == count
    assert facts.lora_parameters(3, [adapter.lora_targets[0]]) < count


def flat_gradient(adapter):
    """Qwen-Image's last block has a text output that nothing looks at: no gradient there."""
    parameters = adapter.lora_parameters().values()
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


def test_bf16_base_keeps_fp32_lora_and_is_near_fp32(case):
    low = case.adapter(dtype="bf16", gradient_checkpointing=True)
    low.add_lora(2, 4)
    randomise(low)
    exact = case.adapter()
    exact.add_lora(2, 4)
    randomise(exact)
    x, sigma = exact.noise(SEEDS), torch.tensor([0.25, 0.5])  # exact in bf16
    rows = [a.velocity(x, sigma, a.encode(PROMPTS)) for a in (exact, low)]
    assert rows[1].dtype == torch.float32
    error = (rows[0] - rows[1]).norm() / rows[0].norm()
    assert 0 < error < 0.1
    gradients = []
    for adapter, v in zip((exact, low), rows):
        v.square().mean().backward()
        gradients.append(flat_gradient(adapter))
        assert gradients[-1].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.9


def test_checkpointing_changes_nothing(case):
    found = []
    for checkpointing in (False, True):
        adapter = case.adapter(gradient_checkpointing=checkpointing)
        adapter.add_lora(2, 4)
        randomise(adapter)
        v = adapter.velocity(adapter.noise([1]), torch.tensor([0.4]), adapter.encode(["a"]))
        v.square().mean().backward()
        found.append(flat_gradient(adapter))
    assert torch.allclose(*found, rtol=1e-5, atol=1e-7) and found[0].norm() > 0


def test_prompt_too_long_is_named(case):
    adapter = case.shared
    with pytest.raises(MarbleError, match=r'prompt too long: "x .* has \d+( or more)? tokens'):
        adapter.encode(["x " * 1200])
    adapter.check_prompts(["x"])
    assert len(case.adapter(truncate_prompts=True).encode(["x " * 1200])) == 1
    most = case.family.adapter.text_tokens_most
    with pytest.raises(MarbleError, match=f"max_sequence_length: at most {most}"):
        case.adapter(max_sequence_length=most + 1)


def test_a_resolution_that_does_not_divide(case):
    with pytest.raises(MarbleError, match=r"model.resolution=33: must be a multiple of"):
        load(str(case.folder), resolution=33)


def test_every_part_is_needed(case, tmp_path):
    copy = shutil.copytree(case.folder, tmp_path / "copy")
    index = pipeline_index(copy)
    for part in case.family.parts:
        (copy / "model_index.json").write_text(json.dumps({**index, part: [None, None]}))
        with pytest.raises(MarbleError, match=f"needs a {part}, which model_index.json lacks$"):
            check(str(copy))


def test_every_tiny_pipeline_is_random_and_reproducible(case, tmp_path):
    def numbers(folder):
        (file,) = (folder / "transformer").glob("*.safetensors")
        return np.frombuffer(file.read_bytes(), dtype=np.uint8)

    again, other = case.family.tiny(tmp_path / "a"), case.family.tiny(tmp_path / "b", seed=1)
    assert np.array_equal(numbers(case.folder), numbers(again))
    assert not np.array_equal(numbers(again), numbers(other))


def test_offloaded_encoders_read_the_same(case):
    """They visit the device layer by layer; afterwards nothing of them is left there."""
    adapter = case.adapter(offload_encoders=True)
    found = adapter.encode(PROMPTS)
    for name, tensor in case.shared.encode(PROMPTS).tensors.items():
        assert torch.equal(tensor, found.tensors[name])
    assert all(p.is_meta for p in adapter.pipeline.text_encoder.parameters())


def test_stable_diffusion_35_large_has_single_attention(tmp_path):
    case = Case(FAMILIES["SD3"], FAMILIES["SD3"].tiny(tmp_path, dual=False))
    ours = case.ours(4.0)
    assert abs(ours[0] - case.picture(PROMPTS[0], SEEDS[0], 4.0)).max() <= 1


def test_flux_is_told_its_guidance_also_in_training(tmp_path):
    """The number is an input of the transformer: stock's `guidance_scale`, in a single pass."""
    case = Case(FAMILIES["Flux"], FAMILIES["Flux"].tiny(tmp_path))
    velocities = []
    for told in (1.0, 3.5):
        adapter = case.adapter(options={"guidance": told})
        ours = case.ours(1.0, adapter)
        assert abs(ours[0] - case.picture(PROMPTS[0], SEEDS[0], 1.0, adapter)).max() <= 1
        x, sigma = adapter.noise(SEEDS), torch.tensor([0.3, 0.8])
        velocities.append(adapter.velocity(x, sigma, adapter.encode(PROMPTS)))
    assert (velocities[0] - velocities[1]).norm() > 0.01 * velocities[0].norm()
    with pytest.raises(MarbleError, match=r"model.options.guidance: .* got -1"):
        case.adapter(options={"guidance": -1.0})


@pytest.mark.slow
def test_sana_with_its_instruction(tmp_path):
    case = Case(FAMILIES["Sana"], FAMILIES["Sana"].tiny(tmp_path))
    adapter = case.adapter(options={})
    ours = case.ours(4.0, adapter)
    assert abs(ours[0] - case.picture(PROMPTS[0], SEEDS[0], 4.0, adapter)).max() <= 1
    assert abs(ours[0] - case.picture(PROMPTS[0], SEEDS[0], 4.0)).max() > 1


def test_sana_has_the_noise_levels_of_the_scheduler_on_the_hub(tmp_path):
    scheduler = diffusers.DPMSolverMultistepScheduler(
        use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction"
    )
    adapter = load(str(FAMILIES["Sana"].tiny(tmp_path, scheduler=scheduler)))
    grid = adapter.grid(20)
    scheduler.set_timesteps(20)
    assert torch.equal(grid, scheduler.sigmas)
    assert 0.99 < grid[0] < 1 and grid[-1] == 0 and (grid.diff() < 0).all()


def test_flux2_that_is_distilled_takes_no_guidance(tmp_path):
    folder = FAMILIES["Flux2"].tiny(tmp_path)
    index = pipeline_index(folder)
    (folder / "model_index.json").write_text(json.dumps({**index, "is_distilled": True}))
    adapter = load(str(folder), resolution=32, max_sequence_length=64)
    cond = adapter.encode(["a"])
    assert len(adapter.sample(cond, [1], steps=2)) == 1
    with pytest.raises(MarbleError, match=r"rollout.guidance: this model is distilled"):
        adapter.sample(cond, [1], steps=2, guidance=4.0)
