"""Drawing with the LoRA inside the weights: the same velocity, and the frozen weights untouched."""

import pytest
import torch
from torch import nn

from marble.models import load, lora
from marble.models.merge import mergeable, merged


def velocity(adapter):
    with torch.no_grad():
        return adapter.velocity(adapter.noise([1]), torch.tensor([0.4]), adapter.encode(["a cat"]))


def frozen(adapter):
    return {
        name: weight
        for name, weight in adapter.transformer.named_parameters()
        if ".lora_" not in name
    }


@pytest.fixture
def trained(adapter, randomise):
    randomise(adapter, seed=1)
    randomise(adapter, seed=2, name="old")
    return adapter


@pytest.mark.parametrize("name", ["default", "old"])
def test_the_same_velocity_as_with_factors(trained, name):
    with trained.using(name):
        wanted = velocity(trained)
    with merged(trained.transformer, name):
        found = velocity(trained)
    with trained.using("base"):
        assert not torch.allclose(found, velocity(trained), atol=1e-3)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_each_weight_is_rounded_once(folder, randomise):
    """bf16: at most half a unit in the last place from the sum in fp64."""
    adapter = load(str(folder), dtype="bf16")
    adapter.add_lora(4, 6, seed=3)
    randomise(adapter, seed=1)
    for name, layer in lora.lora_layers(adapter.transformer):
        weight = layer.base_layer.weight.detach().double()
        up, down = layer.lora_B["default"].weight, layer.lora_A["default"].weight
        exact = weight + 1.5 * (up.double() @ down.double())
        with merged(adapter.transformer, "default"):
            found = layer.base_layer.weight.detach().clone()
        assert found.dtype == torch.bfloat16
        # The sum itself is fp32: where its terms cancel, their rounding is added.
        assert ((found.double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all(), name


def test_frozen_weights_come_back_as_they_were(trained):
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in frozen(trained).items()}
    adapted = [layer.base_layer.weight for _, layer in lora.lora_layers(trained.transformer)]
    with pytest.raises(KeyError, match="inside"), merged(trained.transformer, "old"):
        assert not any(
            torch.equal(w, before[n][1])
            for n, w in frozen(trained).items()
            if any(w is a for a in adapted)
        )
        raise KeyError("inside")
    for name, weight in frozen(trained).items():
        pointer, value = before[name]
        assert weight.data_ptr() == pointer and torch.equal(weight, value)
    assert lora.active(trained.transformer) == "default"
    with trained.using("old"):
        pass


def test_adapters_cannot_be_switched_inside(trained):
    with merged(trained.transformer, "old"):
        with pytest.raises(RuntimeError, match="merged"), trained.using("default"):
            pass
        velocity(trained)
    velocity(trained)


def test_sharded_or_quantised_weights_are_left_alone(trained):
    assert mergeable(trained.transformer)
    layer = lora.lora_layers(trained.transformer)[0][1]

    class Shard(nn.Parameter):
        pass

    plain = layer.base_layer.weight
    layer.base_layer.weight = Shard(plain.data, requires_grad=False)
    assert not mergeable(trained.transformer)
    layer.base_layer.weight = plain
    layer.base_layer.__class__ = type("Linear4bit", (nn.Linear,), {})
    assert not mergeable(trained.transformer)


def test_a_gpu_draws_merged_and_a_cpu_does_not(trained, monkeypatch):
    """`drawing` is what rollouts use; the device is a word here."""
    weight = lora.lora_layers(trained.transformer)[0][1].base_layer.weight
    frozen = weight.detach().clone()
    with trained.drawing("old"):
        assert torch.equal(weight, frozen) and lora.active(trained.transformer) == "old"
    monkeypatch.setattr(trained, "device", torch.device("cuda"))
    with trained.drawing("base"):
        assert torch.equal(weight, frozen) and lora.active(trained.transformer) == "base"
    with trained.drawing("old"):
        assert not torch.equal(weight, frozen) and lora.active(trained.transformer) == "base"
    assert torch.equal(weight, frozen) and lora.active(trained.transformer) == "default"
