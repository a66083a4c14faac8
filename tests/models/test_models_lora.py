"""Two adapters in one model, their states, and the exported file."""

import logging
import warnings

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from marble.errors import MarbleError
from marble.models import load
from marble.models.lora import blend_


def velocity(adapter):
    with torch.no_grad():
        return adapter.velocity(adapter.noise([1]), torch.tensor([0.4]), adapter.encode(["a cat"]))


def test_starts_as_the_base_and_old_equals_default(adapter):
    default, old = adapter.lora_state("default"), adapter.lora_state("old")
    assert all(torch.equal(default[k], old[k]) for k in default)
    assert all((v == 0).all() == (".lora_B." in k) for k, v in default.items())
    with adapter.using("base"):
        base = velocity(adapter)
    assert torch.equal(base, velocity(adapter))


def test_initialisation_is_seeded_and_gaussian(folder):
    states = {}
    for key, seed, init in (
        ("a", 3, "gaussian"),
        ("b", 3, "gaussian"),
        ("c", 4, "gaussian"),
        ("d", 3, "default"),
    ):
        torch.manual_seed(hash(key) % 100)
        adapter = load(str(folder))
        adapter.add_lora(rank=8, alpha=8, seed=seed, init=init)
        states[key] = torch.cat(
            [v.flatten() for k, v in adapter.lora_state().items() if "lora_A" in k]
        )
    assert torch.equal(states["a"], states["b"]) and not torch.equal(states["a"], states["c"])
    assert states["a"].std() == pytest.approx(1 / 8, rel=0.05)
    assert not torch.equal(states["a"], states["d"]) and states["d"].abs().max() < 0.2


def test_only_the_trained_adapter_has_gradients(adapter):
    trainable = [n for n, p in adapter.transformer.named_parameters() if p.requires_grad]
    assert trainable and all(".default." in name for name in trainable)
    assert len(trainable) == len(adapter.lora_parameters("default"))
    with adapter.using("old"):
        velocity(adapter)
    with adapter.using("base"):
        velocity(adapter)
    assert [n for n, p in adapter.transformer.named_parameters() if p.requires_grad] == trainable


def test_targets_are_attention_only_and_can_be_chosen(folder, adapter):
    names = {n.rsplit(".lora_", 1)[0].split("attn.", 1)[1] for n in adapter.lora_parameters()}
    assert names == {
        "to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out",
    }  # fmt: skip
    other = load(str(folder))
    other.add_lora(2, 2, targets=["attn.to_q"])
    assert all(".to_q." in name for name in other.lora_parameters())
    with pytest.raises(MarbleError, match=r"no layer's name ends in any of nothing"):
        load(str(folder)).add_lora(2, 2, targets=["nothing"])


def test_switching_and_nesting(adapter, randomise):
    randomise(adapter, seed=1)
    randomise(adapter, seed=2, name="old")
    default = velocity(adapter)
    with adapter.using("old"):
        old = velocity(adapter)
        with adapter.using("base"):
            base = velocity(adapter)
        assert torch.equal(velocity(adapter), old)
    assert torch.equal(velocity(adapter), default)
    assert not torch.allclose(default, old) and not torch.allclose(default, base)
    with pytest.raises(RuntimeError), adapter.using("old"):
        raise RuntimeError
    assert torch.equal(velocity(adapter), default)
    with pytest.raises(ValueError, match="adapter must be"), adapter.using("other"):
        pass


def test_using_an_adapter_that_is_not_there(folder):
    bare = load(str(folder))
    velocity(bare)
    with bare.using("base"):
        velocity(bare)
    with pytest.raises(MarbleError, match="call add_lora first"), bare.using("old"):
        pass


def test_old_follows_and_ema_blends(adapter, randomise):
    randomise(adapter, seed=1)
    randomise(adapter, seed=2, name="old")
    default, old = adapter.lora_state("default"), adapter.lora_state("old")
    adapter.follow(0.75)
    followed = adapter.lora_state("old")
    for k in old:
        assert torch.allclose(followed[k], 0.75 * old[k] + 0.25 * default[k], atol=1e-7)
    assert all(torch.equal(v, default[k]) for k, v in adapter.lora_state("default").items())
    adapter.follow(0.0)
    assert all(torch.equal(v, default[k]) for k, v in adapter.lora_state("old").items())
    ema = {k: torch.zeros_like(v) for k, v in default.items()}
    blend_(ema, adapter.lora_parameters(), 0.9)
    assert all(torch.allclose(ema[k], 0.1 * default[k]) for k in ema)
    assert not any(v.requires_grad for v in ema.values())


def test_swapped_weights_are_restored(adapter, randomise):
    randomise(adapter, seed=1)
    before = velocity(adapter)
    ema = {k: v * 0.5 for k, v in adapter.lora_state().items()}
    with adapter.swapped(ema):
        assert not torch.allclose(velocity(adapter), before)
    assert torch.equal(velocity(adapter), before)


def test_state_must_fit(adapter):
    state = adapter.lora_state()
    with pytest.raises(MarbleError, match="1 names differ"):
        adapter.load_lora_state("default", dict(list(state.items())[1:]))
    key = next(iter(state))
    with pytest.raises(MarbleError, match="is the rank the same"):
        adapter.load_lora_state("default", {**state, key: state[key][:2]})


@pytest.mark.parametrize("rank_alpha", [(4, 8), (4, 4), (3, 1.5)])
def test_export_gives_the_same_pictures_in_stock_diffusers(folder, tmp_path, randomise, rank_alpha):
    adapter = load(str(folder))
    adapter.add_lora(*rank_alpha)
    randomise(adapter)
    file = adapter.save_lora(tmp_path / "lora")
    assert file.name == "pytorch_lora_weights.safetensors"
    ours = adapter.sample(adapter.encode(["a cat"]), [5], steps=4, sampler="euler")
    pipeline = StableDiffusion3Pipeline.from_pretrained(
        folder, text_encoder_3=None, tokenizer_3=None
    )
    pipeline.set_progress_bar_config(disable=True)

    def latents():
        return pipeline(
            "a cat",
            num_inference_steps=4,
            guidance_scale=1.0,
            generator=torch.Generator().manual_seed(5),
            output_type="latent",
        ).images

    untrained = latents()
    said = _said_while(lambda: pipeline.load_lora_weights(tmp_path / "lora"))
    # diffusers notes, for every LoRA of an SD3 transformer alone, that the two CLIP encoders have
    # none ("safe to ignore"). About our file itself it must have nothing to say.
    assert len(said) == 2 and all("No LoRA keys associated to CLIPText" in line for line in said)
    assert (latents() - ours).abs().max() < 1e-4
    assert (untrained - ours).abs().max() > 1e-3


def _said_while(action):
    """Every log record of diffusers, transformers and peft, and every Python warning."""
    records = []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    handler = Keep(level=logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("diffusers", "transformers", "peft")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            action()
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    return records + [str(w.message) for w in caught]


def test_save_and_load_round_trip(folder, adapter, tmp_path, randomise):
    randomise(adapter)
    adapter.save_lora(tmp_path)
    fresh = load(str(folder))
    fresh.load_lora(tmp_path)
    state = adapter.lora_state()
    assert list(fresh.lora_state()) == list(state)
    assert all(torch.equal(v, state[k]) for k, v in fresh.lora_state("default").items())
    assert all(torch.equal(v, state[k]) for k, v in fresh.lora_state("old").items())
    assert torch.equal(velocity(fresh), velocity(adapter))
    again = tmp_path / "again"
    fresh.save_lora(again)
    assert (again / "pytorch_lora_weights.safetensors").is_file()
    adapter.load_lora(again / "pytorch_lora_weights.safetensors")


def test_other_values_can_be_exported(adapter, tmp_path, randomise):
    randomise(adapter)
    ema = {k: v * 0.5 for k, v in adapter.lora_state().items()}
    adapter.save_lora(tmp_path, values=ema)
    adapter.load_lora(tmp_path)
    assert all(torch.equal(v, ema[k]) for k, v in adapter.lora_state().items())


def test_export_is_the_same_bytes_every_time(adapter, tmp_path):
    first = adapter.save_lora(tmp_path / "a").read_bytes()
    assert adapter.save_lora(tmp_path / "b").read_bytes() == first


def test_bad_lora_files(adapter, folder, tmp_path):
    with pytest.raises(MarbleError, match="no LoRA weights at"):
        adapter.load_lora(tmp_path)
    file = adapter.save_lora(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    with pytest.raises(MarbleError, match="damaged or cut short"):
        adapter.load_lora(tmp_path)
    file.write_bytes(whole)
    other_rank = load(str(folder))
    other_rank.add_lora(2, 8)
    with pytest.raises(MarbleError, match="is the rank the same"):
        other_rank.load_lora(tmp_path)
    other_alpha = load(str(folder))
    other_alpha.add_lora(4, 4)
    with pytest.raises(MarbleError, match=r"made with model.lora.alpha=8, this is 4"):
        other_alpha.load_lora(tmp_path)
    with pytest.raises(MarbleError, match="not a LoRA"):
        adapter.load_lora(folder / "vae" / "diffusion_pytorch_model.safetensors")


def test_a_lora_may_be_read_by_whoever_may_read_other_files(tmp_path):
    from marble.models.lora import read_file, write_file

    values = {"a.lora_A.weight": torch.ones(2, 3), "a.lora_B.weight": torch.ones(3, 2)}
    (tmp_path / "other").touch()
    file = tmp_path / "pytorch_lora_weights.safetensors"
    write_file(file, values, {"r": 2, "lora_alpha": 4})
    assert file.stat().st_mode == (tmp_path / "other").stat().st_mode
    state, config = read_file(file)
    assert config["lora_alpha"] == 4
    assert all(torch.equal(state[name], value) for name, value in values.items())
