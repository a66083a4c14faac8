"""Sizes of the checkpoints on the hub: counted on the meta device, nothing is allocated."""

from pathlib import Path

import diffusers
import pytest
import torch
import transformers
from _families import FAMILIES

from marble.doctor import examine
from marble.memory import estimate, model_facts, sized
from marble.recipe import list_recipes, load_recipe

PUBLISHED = {hub_id: family for family in FAMILIES.values() for hub_id in family.published}
#: As their pages say: billions of parameters of the transformer.
TRANSFORMERS = {
    "stabilityai/stable-diffusion-3.5-medium": 2.5,
    "stabilityai/stable-diffusion-3.5-large": 8.1,
    "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers": 1.6,
    "black-forest-labs/FLUX.2-klein-base-4B": 3.9,
    "Tongyi-MAI/Z-Image": 6.2,
    "Qwen/Qwen-Image": 20.4,
    "black-forest-labs/FLUX.1-dev": 11.9,
}


def qwen3_4b():
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    )
    return transformers.Qwen3Model(config)


def qwen25_vl_7b():
    text = {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    }
    vision = {"hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 3584}
    config = transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=False
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def gemma2_2b():
    config = transformers.Gemma2Config(num_key_value_heads=4)
    return transformers.Gemma2Model(config)


def clip_l():
    config = transformers.CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    return transformers.CLIPTextModel(config)


def deep_autoencoder():
    kinds = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
    scales = ((), (), (), (5,), (5,), (5,))
    return diffusers.AutoencoderDC(
        latent_channels=32,
        encoder_block_types=kinds,
        decoder_block_types=kinds,
        encoder_layers_per_block=(2, 2, 2, 3, 3, 3),
        decoder_layers_per_block=(3,) * 6,
        encoder_qkv_multiscales=scales,
        decoder_qkv_multiscales=scales,
        downsample_block_type="Conv",
        upsample_block_type="interpolate",
    )


PARTS = [
    ("Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers", "text_encoder", gemma2_2b),
    ("Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers", "vae", deep_autoencoder),
    ("black-forest-labs/FLUX.2-klein-base-4B", "text_encoder", qwen3_4b),
    ("black-forest-labs/FLUX.2-klein-base-4B", "vae", diffusers.AutoencoderKLFlux2),
    ("Tongyi-MAI/Z-Image", "text_encoder", qwen3_4b),
    ("Qwen/Qwen-Image", "text_encoder", qwen25_vl_7b),
    ("Qwen/Qwen-Image", "vae", diffusers.AutoencoderKLQwenImage),
    ("black-forest-labs/FLUX.1-dev", "text_encoder", clip_l),
]


@pytest.mark.parametrize(("hub_id", "part", "build"), PARTS)
def test_parts_have_the_size_of_their_architecture(hub_id, part, build):
    with torch.device("meta"):
        model = build()
    tensors = {id(v): v for v in (*model.parameters(), *model.buffers())}  # shared ones once
    kept = {id(v) for v in model.state_dict(keep_vars=True).values()}
    count = sum(v.numel() for key, v in tensors.items() if key in kept)
    assert PUBLISHED[hub_id].published[hub_id].parts[part] == count


@pytest.mark.parametrize("hub_id", PUBLISHED)
def test_transformers_have_the_size_they_are_known_for(hub_id):
    facts = PUBLISHED[hub_id].published_facts(hub_id)
    assert facts.parts["transformer"] / 1e9 == pytest.approx(TRANSFORMERS[hub_id], abs=0.06)
    assert 5e6 < facts.lora_parameters(32) < 1e8
    assert facts.tokens(1024) - facts.tokens(512) == 3 * (facts.tokens(512) - facts.layout.text)


RECIPES = {
    "sana-5rewards": 24,
    "flux2-klein-5rewards": 24,
    "zimage-5rewards": 80,
    "qwen-image-5rewards": 80,
    "flux1-dev-5rewards": 80,
    "sd35l-5rewards": 80,
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_the_gpu_it_is_for(name, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    recipe = load_recipe(name)
    assert f"one GPU of {RECIPES[name]} GB" in recipe.description
    assert estimate(sized(recipe, RECIPES[name])).peak < RECIPES[name]
    checks = {check.what: check for check in examine(name)}
    assert not checks["model"].ok and f"hf download {recipe.model.path}" in checks["model"].remedy
    assert "GB wanted" in checks["memory"].found


def test_every_published_model_has_a_recipe():
    paths = {load_recipe(name).model.path for name in list_recipes()}
    assert set(PUBLISHED) <= paths


def test_a_recipe_carries_the_options_of_its_family():
    recipe = load_recipe("flux1-dev-5rewards", ["model.options.guidance=1.5"])
    assert recipe.model.options == {"guidance": 1.5}
    assert model_facts(recipe).layout.width == 3072


def test_the_page_tells_the_estimates_of_today():
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text()
    table = page.split("<!-- estimates -->")[1].split("\n\n")[0].strip().splitlines()[2:]
    shown = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    assert {row[0] for row in shown} == set(PUBLISHED)
    least = ["train.batch_size=1", "rollout.batch_size=1", "data.prompts_per_epoch=24"]
    for hub_id, billions, name, gpu, needs, *rest in shown:
        recipe = load_recipe(name)
        sides = [
            estimate(load_recipe(name, [*least, f"model.resolution={side}"])).peak
            for side in (512, 1024)
        ]
        fits = ", ".join(str(size) for size in (24, 48, 80) if sides[0] < size) + " GB"
        card = int(gpu.split()[0])
        peak = estimate(sized(recipe, card)).peak
        assert recipe.model.path == hub_id and peak < card
        told = [f"{model_facts(recipe).parts['transformer'] / 1e9:.1f}", f"{peak:.1f}"]
        assert [billions, needs, *rest] == [*told, *(f"{s:.1f}" for s in sides), fits]
