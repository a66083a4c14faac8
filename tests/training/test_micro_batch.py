"""Batches that the memory decides on: what fits, what a run keeps of it."""

import pytest
import torch
import yaml
from rich.console import Console

from marble.memory import DRAWN, FILLED, FULL, MOST, estimate, of_size, sized
from marble.recipe import load_recipe
from marble.training import memory
from marble.training.run import train

BASE = "sd35m-5rewards"


def batch(memory_gb, *overrides, processes=1, base=BASE):
    recipe = load_recipe(base, ["train.batch_size=null", "rollout.batch_size=8", *overrides])
    found = sized(recipe, memory_gb, processes)
    assert found.model_copy(update={"train": recipe.train}) == recipe  # nothing else changes
    return found


@pytest.mark.parametrize("memory_gb", [48, 80, 141])
@pytest.mark.parametrize("base", [BASE, "sd35m-5rewards-1gpu"])
def test_it_fits_and_one_twice_as_large_would_not(memory_gb, base):
    found = batch(memory_gb, base=base)
    size = found.train.batch_size
    assert estimate(found).phases["training"] <= FILLED * memory_gb
    if 2 * size <= MOST:
        double = found.train.model_copy(update={"batch_size": 2 * size + 1})
        wider = found.model_copy(update={"train": double})
        assert estimate(wider).phases["training"] > FILLED * memory_gb


def test_it_divides_a_step_where_it_can():
    """1152 samples; on 16 processes 72; on 50 the 24 of most of them."""
    assert 1152 % batch(141).train.batch_size == 0
    assert 72 % batch(141, processes=16).train.batch_size == 0
    assert batch(141, processes=50).train.batch_size == 24
    assert batch(141, processes=1152).train.batch_size == 1
    assert batch(1000).train.batch_size == MOST
    assert batch(10).train.batch_size == 1  # too little for any: doctor says so
    assert batch(None).train.batch_size == 9


def test_pairs_of_pictures_stay_together():
    pairs = ["objective.name=dpo", "balance.method=marble", "balance.target=full"]
    assert batch(80, *pairs).train.batch_size % 2 == 0
    assert batch(10, *pairs).train.batch_size == 2


def test_a_number_of_ones_own_stays():
    recipe = load_recipe(BASE, ["train.batch_size=7", "rollout.batch_size=50"])
    assert sized(recipe, 1000.0) is recipe


def drawn(memory_gb, *overrides, processes=1, base=BASE):
    recipe = load_recipe(base, ["rollout.batch_size=null", "train.batch_size=1", *overrides])
    found = sized(recipe, memory_gb, processes)
    assert found.model_copy(update={"rollout": recipe.rollout}) == recipe
    return found


@pytest.mark.parametrize(
    ("base", "memory_gb"), [(BASE, 40), (BASE, 46), ("flux2-klein-5rewards", 25.2)]
)
def test_pictures_drawn_at_once_fit_and_twice_as_many_would_not(base, memory_gb):
    found = drawn(memory_gb, base=base)
    phases, size = estimate(found).phases, found.rollout.batch_size
    assert 1 < size < MOST and found.samples_per_epoch % size == 0
    assert phases["sampling"] <= FILLED * memory_gb and phases["decoding"] <= FULL * memory_gb
    more = estimate(of_size(found, drawn=2 * size + 1)).phases
    assert more["sampling"] > FILLED * memory_gb or more["decoding"] > FULL * memory_gb


def test_pictures_drawn_at_once_are_even_and_not_too_many():
    assert drawn(141).rollout.batch_size == MOST  # 1152 pictures: 24 batches
    assert drawn(141, processes=16).rollout.batch_size == 36  # 72 each
    assert drawn(141, processes=11).rollout.batch_size == 35  # 105 each: three batches
    assert drawn(141, processes=1152).rollout.batch_size == 1
    assert drawn(None).rollout.batch_size == DRAWN == 24  # a CPU, or a model of unknown size
    assert drawn(10).rollout.batch_size == 1


def test_guidance_draws_with_the_prompt_and_without():
    grown = []
    for guidance in (1, 4):
        recipe = load_recipe(BASE, [f"rollout.guidance={guidance}", "train.overlap_rewards=false"])
        few, more = (estimate(of_size(recipe, 1, drawn=n)).phases["sampling"] for n in (9, 18))
        grown.append(more - few)
    assert grown[1] == pytest.approx(2 * grown[0]) and grown[0] > 0


def test_a_gpu_that_is_shared_counts_as_its_part(monkeypatch):
    class Properties:
        total_memory = 80e9

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    parts = {0: 0.25, 1: 0.5}  # torch wants a number here, not a device
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", parts.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert memory.device_gb(torch.device("cuda")) == pytest.approx(40)
    assert memory.device_gb(torch.device("cuda:0")) == pytest.approx(20)
    assert memory.device_gb(torch.device("cpu")) is None


def test_a_run_keeps_the_number_and_resumes_with_it(toy, tmp_path, monkeypatch):
    """Resumed where the memory would say another number: the weights are those of one whole run."""
    console = Console(record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    free = ["train.batch_size=null", "rollout.batch_size=null", "train.checkpoint_every=1"]
    monkeypatch.setattr(memory, "sized", lambda recipe, *_: replace_batch(recipe, 4, 3))
    train(toy.recipe(*free), tmp_path / "run", device="cpu", console=console)
    said = console.export_text()
    assert "train.batch_size: 4 samples per micro-batch, by the memory" in said
    assert "rollout.batch_size: 3 pictures drawn at once, by the memory" in said
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["train"]["batch_size"] == 4 and kept["rollout"]["batch_size"] == 3
    monkeypatch.setattr(memory, "sized", lambda recipe, *_: replace_batch(recipe, 2, 5))
    again = load_recipe(str(tmp_path / "run" / "config.yaml"), ["train.steps=3"])
    assert again.train.batch_size == 4 and again.rollout.batch_size == 3
    train(again, tmp_path / "run", device="cpu", resume=True, console=console)
    fixed = ["train.batch_size=4", "rollout.batch_size=3"]
    whole = toy.recipe(*fixed, "train.steps=3", "train.checkpoint_every=1")
    train(whole, tmp_path / "whole", device="cpu", console=console)
    lora = "checkpoints/step-000003/lora/pytorch_lora_weights.safetensors"
    assert (tmp_path / "run" / lora).read_bytes() == (tmp_path / "whole" / lora).read_bytes()


def replace_batch(recipe, size, drawn):
    given = recipe.train.batch_size, recipe.rollout.batch_size
    return of_size(recipe, given[0] or size, drawn=given[1] or drawn)
