"""A micro-batch that the memory decides on: what fits, what a run keeps of it."""

import pytest
import torch
import yaml
from rich.console import Console

from marble.memory import FILLED, MOST, estimate, sized
from marble.recipe import load_recipe
from marble.training import memory
from marble.training.run import train

BASE = "sd35m-5rewards"


def batch(memory_gb, *overrides, processes=1, base=BASE):
    recipe = load_recipe(base, ["train.batch_size=null", *overrides])
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
    recipe = load_recipe(BASE, ["train.batch_size=7"])
    assert sized(recipe, 1000.0) is recipe


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
    free = ["train.batch_size=null", "train.checkpoint_every=1"]
    monkeypatch.setattr(memory, "sized", lambda recipe, *_: replace_batch(recipe, 4))
    train(toy.recipe(*free), tmp_path / "run", device="cpu", console=console)
    assert "train.batch_size: 4 samples per micro-batch" in console.export_text()
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["train"]["batch_size"] == 4
    monkeypatch.setattr(memory, "sized", lambda recipe, *_: replace_batch(recipe, 2))
    again = load_recipe(str(tmp_path / "run" / "config.yaml"), ["train.steps=3"])
    assert again.train.batch_size == 4
    train(again, tmp_path / "run", device="cpu", resume=True, console=console)
    whole = toy.recipe("train.batch_size=4", "train.steps=3", "train.checkpoint_every=1")
    train(whole, tmp_path / "whole", device="cpu", console=console)
    lora = "checkpoints/step-000003/lora/pytorch_lora_weights.safetensors"
    assert (tmp_path / "run" / lora).read_bytes() == (tmp_path / "whole" / lora).read_bytes()


def replace_batch(recipe, size):
    if recipe.train.batch_size is not None:
        return recipe
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"batch_size": size})})
