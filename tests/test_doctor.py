"""`marble doctor`: what it finds, how it reads, and that its memory estimate adds up."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from _full_size import full_size_parts
from marble.cli import app
from marble.doctor import examine
from marble.duration import GPUS
from marble.memory import (
    REWARD_MODELS,
    count_parameters,
    disk_gb,
    estimate,
    model_facts,
    reward_bytes,
    sized,
)
from marble.models.sd3 import SD3
from marble.recipe import list_recipes, load_recipe

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No network, and a hub cache that is empty."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return SD3.tiny(tmp_path_factory.mktemp("model"), t5=True)


@pytest.fixture
def ready(tiny, tmp_path):
    """Overrides with which a small recipe has all it needs."""
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text("a dog\na cat\n")
    (tmp_path / "mine.yaml").write_text(
        f"model: {{path: {tiny}, dtype: fp32}}\n"
        f"data: {{sources: {{general: {tmp_path}}}}}\n"
        "rewards: [ocr]\n"
    )
    return str(tmp_path / "mine.yaml")


def doctor(*words):
    return CliRunner().invoke(app, ["doctor", *words])


def test_a_recipe_that_is_ready(ready):
    result = doctor(ready)
    assert result.exit_code == 0, result.output
    assert "MISSING" not in result.output and "is ready: marble train" in result.output
    assert "2 train, 2 test" in result.output and "StableDiffusion3Pipeline in" in result.output


def test_sd35m_without_weights_says_how_to_get_each_thing():
    result = doctor("sd35m-5rewards")
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "accept the licence on https://huggingface.co/stabilityai/stable" in text
    assert "hf auth login" in text and "hf download stabilityai/stable-diffusion-3.5-medium" in text
    assert "data/pickscore: no such prompt" in text and "data.sources.general.path=FOLDER" in text
    for reward in ("geneval", "pickscore", "clipscore", "hpsv2", "imagereward", "aesthetic"):
        assert f"MISSING reward {reward}" in text
    assert "sd35m-5rewards is not ready" in text
    lines = result.output.splitlines()
    downloads = [line for line in lines if line.startswith("hf download")]
    assert max(len(line) for line in lines if line not in downloads) <= 100
    assert len(downloads) == len(set(downloads)) == 9  # each once, in one piece to be copied
    assert "hf download xswu/HPSv2 HPS_v2.1_compressed.pt --revision" in text
    assert "about 45.3 GB wanted" in text and "no GPU here to compare with" in text


def test_json_is_one_object_with_the_same_verdict():
    result = doctor("sd35m-5rewards", "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert told["ready"] is False
    checks = {check["what"]: check for check in told["checks"]}
    assert checks["packages"]["ok"] and not checks["model"]["ok"]
    assert all(check["remedy"] for check in told["checks"] if not check["ok"])


def test_every_shipped_recipe_can_be_examined():
    for name in list_recipes():
        whats = [check.what for check in examine(name)]
        assert {"packages", "model", "device", "memory", "disk"} <= set(whats)


def test_a_damaged_weight_file_is_found(tiny, ready, tmp_path):
    copy = SD3.tiny(tmp_path / "copy")
    file = next((copy / "transformer").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-10])
    checks = {c.what: c for c in examine(ready, [f"model.path={copy}"])}
    assert not checks["model"].ok and "damaged" in checks["model"].found


def test_a_tracker_that_is_not_installed_is_named(ready, monkeypatch):
    import importlib.metadata

    real = importlib.metadata.version

    def version(name):
        if name == "wandb":
            raise importlib.metadata.PackageNotFoundError
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    checks = {c.what: c for c in examine(ready, ["log.trackers=[wandb]"])}
    assert (
        not checks["tracker wandb"].ok and "marble-rl[trackers]" in checks["tracker wandb"].remedy
    )


def test_a_reward_of_ones_own_has_the_right_remedy(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "extends: studio\nrewards: {add: [{name: warm, reward: 'warm.py:warmth'}]}\n"
    )
    for text, remedy in (
        (None, "put it beside the recipe that names it"),
        ("def warmth(:", f"mend {tmp_path / 'warm.py'}"),
        ("def warmt(): ...", "did you mean warmt?"),
    ):
        if text is not None:
            (tmp_path / "warm.py").write_text(text)
        checks = {c.what: c for c in examine(str(tmp_path / "mine.yaml"))}
        assert not checks["reward warm"].ok and remedy in checks["reward warm"].remedy


def test_a_users_mistake_is_status_2():
    assert doctor("no-such-recipe").exit_code != 0
    with pytest.raises(Exception, match="one recipe at a time"):
        CliRunner().invoke(app, ["doctor", "studio", "studio-fast"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("card", "ok", "said"),
    [
        (None, False, "this is a CPU"),
        (GPUS["a100"], False, "this is an A100"),
        (GPUS["h100"], True, "the GPU multiplies it"),
    ],
)
def test_fp8_where_it_cannot_be_had(monkeypatch, card, ok, said):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    checks = {c.what: c for c in examine("studio", ["rollout.fp8=true"], card)}
    assert checks["fp8"].ok == ok and said in checks["fp8"].found
    assert ok or checks["fp8"].remedy == "set rollout.fp8=false"
    assert "fp8" not in {c.what for c in examine("studio", [], card)}


# -- the estimate ---------------------------------------------------------------------------------


def test_parameters_are_counted_from_the_files(tiny):
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel.from_pretrained(tiny, subfolder="transformer")
    counted = count_parameters(tiny / "transformer")
    buffers = sum(b.numel() for b in model.state_dict().values())
    assert counted == buffers


def test_published_sizes_are_those_of_the_architectures():
    """Counted on the meta device: nothing is allocated."""
    built = full_size_parts()
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in built.items()}
    assert counts["transformer"] == 2_243_171_520
    counts["transformer"] += sum(b.numel() for b in built["transformer"].buffers())  # positions
    known = model_facts(load_recipe("sd35m-5rewards"))
    assert {name: counts[name] for name in known.parts} == known.parts
    for name, count in (model for models in REWARD_MODELS.values() for model in models):
        assert counts[name] == count, name
    config, layout = built["transformer"].config, known.layout
    assert (layout.layers, layout.width) == (config.num_layers, config.caption_projection_dim)
    assert layout.resolution == 8 * config.sample_size and layout.patch == config.patch_size


def test_lora_of_sd35m_has_the_measured_size():
    known = model_facts(load_recipe("sd35m-5rewards"))
    assert known.lora_parameters(32) == 18_776_064


def test_of_a_model_that_is_not_here_and_that_no_family_knows_nothing_is_made_up():
    checks = {c.what: c for c in examine("sd35m-5rewards", ["model.path=some/model"])}
    assert not checks["model"].ok
    assert checks["memory"].found.startswith("not known") and "GB" not in checks["memory"].found


def test_the_measured_step_is_reproduced():
    """H200, batch 9, 512 px, no checkpointing, 205 text tokens: 32.05 GB without anything else."""
    small = ["data.prompts_per_epoch=3", "data.images_per_prompt=3"]  # nothing but a step
    eager = ["model.max_sequence_length=128", "model.compile=false", *small]
    found = estimate(load_recipe("sd35m-5rewards", eager))
    step = found.phases["training"] - sum(found.held.values()) + found.held["transformer"]
    assert step + 3 * 0.0751 == pytest.approx(32.05, rel=0.01)


def test_a_compiled_step_is_reproduced():
    """H200, batch 36: the peaks of `marble bench loop sd35m-5rewards`."""
    measured = json.loads((RESULTS / "loop_sd35m_h200_36.json").read_text())
    found = estimate(load_recipe("sd35m-5rewards", ["train.batch_size=36"]))
    assert measured["setup"]["ours"]["batch"] == 36
    peak = measured["peak_memory_gb"]["ours, weighted sum"] + found.held["CUDA itself"]
    assert found.phases["training"] == pytest.approx(peak, rel=0.03)


def test_the_one_gpu_recipe_fits_24_gb_and_the_other_one_does_not():
    small, large = (
        estimate(sized(load_recipe(name), memory_gb))
        for name, memory_gb in (("sd35m-5rewards-1gpu", 24), ("sd35m-5rewards", 80))
    )
    assert small.peak < 24 < large.peak < 80
    assert small.peak_phase == "decoding"  # the encoders visit layer by layer
    # Measured with 8 at once, CUDA itself, and the latents of two whole epochs; one picture more.
    told = 19.89 + 0.90 + 2 * 1152 * 16 * 64 * 64 * 4e-9 + 3560 * 512**2 * 1e-9
    assert small.peak == pytest.approx(told, abs=0.2)


LOOP = json.loads((RESULTS / "sd35m_loop_h200.json").read_text())
EPOCH = ["data.prompts_per_epoch=6", "data.images_per_prompt=4", "rollout.batch_size=8"]
"""Of the benchmark; all else that the estimate reads is the recipe's."""


def test_the_loop_was_measured_as_the_recipe_is():
    loaded = load_recipe("sd35m-5rewards-1gpu", EPOCH)
    recipe, measured = loaded.model_dump(mode="json"), LOOP["setup"]["recipe"]
    assert loaded.samples_per_epoch == LOOP["setup"]["samples_per_epoch"]
    assert LOOP["complete"] and not LOOP["setup"]["tiny"] and LOOP["setup"]["t5"] == "full"
    for section in ("model", "rollout"):  # fields that were added later do not matter
        now = {key: recipe[section][key] for key in measured[section]}
        now |= {"compile": False} if section == "model" else {}  # compiled, it needs no more
        assert measured[section] | {"path": ""} == now | {"path": ""}
    for key in ("batch_size", "steps_per_epoch", "overlap_rewards", "precision", "fsdp"):
        assert measured["train"][key] == recipe["train"][key], key


@pytest.mark.parametrize(
    ("phase", "measured"),
    [
        ("encoding prompts", "encode prompts"),
        ("sampling", "sample latents"),
        ("decoding", "decode pictures"),
        ("rewards", "rewards, all"),
        ("training", "optimiser step, refresh"),
        ("training", "optimiser step, ordinary"),
    ],
)
def test_the_measured_phases_are_reproduced(phase, measured):
    told = estimate(load_recipe("sd35m-5rewards-1gpu", EPOCH)).phases[phase]
    peak = LOOP["phases"][measured]["peak_gb"] + LOOP["memory"]["cuda_itself_gb"]
    assert told == pytest.approx(peak, rel=0.05)


def test_a_clip_reward_alone_is_reproduced():
    """Its working memory on the batch of 8 that was measured, in fp32."""
    entry = "{name: clipscore, options: {dtype: fp32, batch_size: 8}}"
    overrides = ["rewards.heldout=[]", f"rewards.train=[{entry}]"]
    found = estimate(load_recipe("sd35m-5rewards-1gpu", overrides))
    phase = LOOP["phases"]["reward clipscore, 8 pictures"]
    working = found.phases["rewards"] - sum(found.held.values())
    assert working == pytest.approx(phase["peak_gb"] - phase["left_gb"], rel=0.1)


def test_settings_move_the_estimate_the_right_way():
    def peak(*overrides):
        return estimate(load_recipe("sd35m-5rewards", list(overrides))).phases["training"]

    assert peak("model.gradient_checkpointing=true") < peak() - 10
    assert peak("train.batch_size=4") < peak()
    assert peak("model.dtype=fp32") > peak() + 4
    assert peak("balance.heldout_half=true") > peak()
    assert peak("model.offload_encoders=true") < peak() - 10


def test_rewards_on_one_checkpoint_are_counted_once():
    both = reward_bytes(load_recipe("sd35m-5rewards", ["rewards.heldout=[aesthetic]"]))
    alone = reward_bytes(load_recipe("sd35m-5rewards", ["rewards.heldout=[]"]))
    assert both - alone < 1e7
    half = reward_bytes(
        load_recipe("sd35m-5rewards", ["rewards.heldout=[]", "rewards.hpsv2.options.dtype=bf16"])
    )
    assert alone - half == pytest.approx(2 * 986_109_441)


def test_a_reward_model_that_is_here_is_counted_from_its_files(tiny):
    here = ["rewards.heldout=[]", f"rewards.pickscore.options.path={tiny / 'transformer'}"]
    published = reward_bytes(load_recipe("sd35m-5rewards", here[:1]))
    counted = reward_bytes(load_recipe("sd35m-5rewards", here))
    small = count_parameters(tiny / "transformer")
    assert published - counted == pytest.approx(4 * (986_109_441 - small))


def test_disk_grows_with_what_is_kept():
    few, many = (load_recipe("sd35m-5rewards", [f"train.keep_checkpoints={n}"]) for n in (1, 5))
    assert disk_gb(many) - disk_gb(few) == pytest.approx(4 * 6 * 4 * 18_776_064 / 1e9)
