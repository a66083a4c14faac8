"""One LoRA with gates is K+1 ordinary ones with weights, in marble and in stock diffusers."""

import json

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from marble.errors import MarbleError
from marble.models import load
from marble.models.lora import read_file
from marble.models.sliders import Sliders

SLIDERS = Sliders(("ocr", "look"), shared=3, each=2, most=2.0)


@pytest.fixture
def steered(folder, randomise):
    adapter = load(str(folder))
    adapter.add_lora(rank=7, alpha=10.5, seed=3)
    adapter.add_sliders(SLIDERS)
    randomise(adapter, seed=1)
    randomise(adapter, seed=2, name="old")
    return adapter


def velocities(adapter, count=3):
    x = adapter.noise(range(count))
    cond = adapter.encode(["a cat", "a red dog", "the sea"][:count])
    with torch.no_grad():
        return adapter.velocity(x, torch.full((count,), 0.4), cond)


@pytest.mark.parametrize("name", ["default", "old"])
def test_every_sample_of_a_batch_has_its_own_weights(steered, name):
    weights = [(0.0, 2.0), (1.5, 0.5), None]
    with steered.using(name), steered.preferring(weights):
        gated = velocities(steered)
    values = steered.lora_state(name)
    for i, own in enumerate(weights):
        plain = SLIDERS.at(values, own or (1.0, 1.0))
        with steered.using(name), steered.swapped(plain, name):
            torch.testing.assert_close(gated[i], velocities(steered)[i], atol=1e-5, rtol=1e-4)
    with steered.using(name):
        apart = (velocities(steered) - gated).abs().flatten(1).amax(1)
    assert (apart[:2] > 1e-3).all() and apart[2] < 1e-5


def test_the_base_has_no_gates(steered):
    with steered.using("base"):
        plain = velocities(steered)
        with steered.preferring([(0.0, 2.0)] * 3):
            assert torch.equal(velocities(steered), plain)


def test_gates_lie_where_a_recorded_pass_reads_them(steered):
    """CUDA graphs hold addresses: gates of as many samples are always at the same one."""
    seen = []
    for weights in ([(0.0, 2.0), (1.5, 0.5)], [(2.0, 0.0), (1.0, 1.0)]):
        with steered.preferring(weights):
            rows = steered._gates.rows
            assert torch.equal(rows, SLIDERS.gates(weights))
            seen.append(rows.data_ptr())
    assert seen[0] == seen[1]


def test_sliders_cannot_differ_where_the_lora_is_merged(steered):
    from marble.models import merge

    with (
        merge.merged(steered.transformer, "default"),
        pytest.raises(RuntimeError, match="merged into the weights"),
    ):
        steered.preferring([(0.0, 2.0)])


@pytest.mark.slow
def test_compiled_blocks_are_gated_too(folder, randomise):
    """Traced as a whole, without a break, and again for other gates of the same size."""
    from marble.models.compiling import Compiled
    from marble.models.pipeline import blocks

    plain, traced = (load(str(folder)) for _ in range(2))
    for adapter in (plain, traced):
        adapter.add_lora(rank=7, alpha=10.5, seed=3)
        adapter.add_sliders(SLIDERS)
        randomise(adapter, seed=1)
    compiled = Compiled(blocks(traced.transformer), print, backend="eager")
    for weights in ([(0.0, 2.0), (1.5, 0.5), None], [(2.0, 0.0), None, (0.3, 0.1)]):
        found = []
        for adapter in (plain, traced):
            with adapter.preferring(weights):
                found.append(velocities(adapter))
        torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)
    assert compiled.mode == "whole" and compiled.eager == 0


def test_guidance_and_smaller_batches_keep_samples_and_weights_together(steered):
    cond = steered.encode(["a cat", "a red dog", "the sea"])
    how = {"steps": 2, "sampler": "euler", "guidance": 3.0}
    with steered.preferring([(0.0, 2.0), (1.5, 0.5), (2.0, 0.0)]):
        whole = steered.sample(cond, [1, 2, 3], **how)
        parts = steered.sample(cond, [1, 2, 3], batch_size=2, **how)
    torch.testing.assert_close(whole, parts, atol=1e-4, rtol=1e-4)
    with steered.preferring([(2.0, 0.0)]):
        alone = steered.sample(cond[2], [3], **how)
    torch.testing.assert_close(whole[2:], alone, atol=1e-4, rtol=1e-4)


def test_stock_diffusers_with_set_adapters_draws_the_same(folder, steered, tmp_path):
    steered.save_lora(tmp_path)
    weights = {"ocr": 1.6, "look": 0.4}
    with steered.preferring([SLIDERS.weights(weights)]):
        ours = steered.sample(steered.encode(["a cat"]), [5], steps=4, sampler="euler")
    pipe = StableDiffusion3Pipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    pipe.set_progress_bar_config(disable=True)
    names = ["shared", "ocr", "look"]
    for name in names:
        pipe.load_lora_weights(
            tmp_path / "sliders", weight_name=f"{name}.safetensors", adapter_name=name
        )

    def latents(*chosen):
        pipe.set_adapters(names, list(chosen))
        seeded = torch.Generator().manual_seed(5)
        return pipe(
            "a cat",
            num_inference_steps=4,
            guidance_scale=1.0,
            generator=seeded,
            output_type="latent",
        ).images

    assert (latents(1.0, 1.6, 0.4) - ours).abs().max() < 1e-4
    default = steered.sample(steered.encode(["a cat"]), [5], steps=4, sampler="euler")
    assert (latents(1.0, 1.0, 1.0) - default).abs().max() < 1e-4
    assert (default - ours).abs().max() > 1e-3


def test_the_whole_folder_is_an_ordinary_lora_and_tells_of_its_sliders(steered, tmp_path):
    steered.save_lora(tmp_path)
    about = json.loads((tmp_path / "sliders.json").read_text())
    assert about["sliders"] == {
        name: {"default": 1.0, "range": [0.0, 2.0]} for name in ("ocr", "look")
    }
    assert Sliders.read(tmp_path) == SLIDERS
    values, config = read_file(tmp_path)
    assert config["r"] == 7 and config["lora_alpha"] == 10.5
    parts = {
        name: read_file(tmp_path / "sliders" / f"{name}.safetensors") for name in SLIDERS.parts
    }
    assert [config["r"] for _, config in parts.values()] == [3, 2, 2]
    assert [config["lora_alpha"] for _, config in parts.values()] == [4.5, 3, 3]
    key = next(k for k in values if ".lora_A." in k)
    assert torch.equal(torch.cat([state[key] for state, _ in parts.values()]), values[key])
    assert sum(v.numel() for state, _ in parts.values() for v in state.values()) == sum(
        v.numel() for v in values.values()
    )


def test_weights_by_name():
    assert SLIDERS.weights({"look": 0.5}) == [1.0, 0.5]
    with pytest.raises(MarbleError, match="no slider 'looks'; known: ocr, look"):
        SLIDERS.weights({"looks": 1.0})
    with pytest.raises(
        MarbleError, match=r"is -1, but it was trained from 0 to 2; choose .*range$"
    ):
        SLIDERS.weights({"ocr": -1.0})


def test_a_weight_beyond_the_range_and_names_that_are_not_clear():
    sliders = Sliders(("ocr", "studio-look", "my-look"), shared=3, each=2, most=1.5)
    wider = r"trained from 0 to 1.5; choose one in that range \(or train with balance\..*most=2\)"
    with pytest.raises(MarbleError, match=wider):
        sliders.weights({"ocr": 2.0})
    with pytest.raises(MarbleError, match=r"range$"):  # more than there are sliders
        sliders.weights({"ocr": 4.0})
    with pytest.raises(MarbleError, match="'look': say which, studio-look or my-look"):
        sliders.weights({"look": 1.0})
    one = Sliders(("ocr", "studio-look"), shared=3, each=2, most=1.5)
    with pytest.raises(MarbleError, match="slider studio-look: it has two weights"):
        one.weights({"look": 1.0, "studio-look": 0.5})


def test_a_damaged_index_is_named(tmp_path):
    assert Sliders.read(tmp_path) is None
    (tmp_path / "sliders.json").write_text('{"sliders": 3}')
    with pytest.raises(MarbleError, match=r"sliders\.json: not as marble writes it"):
        Sliders.read(tmp_path)
