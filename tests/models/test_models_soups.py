"""Merged LoRAs are the weighted sum of what each of them adds."""

import pytest
import torch

from marble.errors import MarbleError
from marble.models.soups import merged

NAME = "block.attn.to_q"


def some(rank: int, alpha: float, seed: int):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(s, generator=generator) for s in ((rank, 6), (5, rank)))
    state = {f"{NAME}.lora_A.weight": a, f"{NAME}.lora_B.weight": b}
    return state, {"r": rank, "lora_alpha": alpha, "target_modules": [NAME]}


def added(state, config):
    a, b = state[f"{NAME}.lora_A.weight"], state[f"{NAME}.lora_B.weight"]
    return config["lora_alpha"] / config["r"] * b @ a


def test_the_sum_is_exact_whatever_ranks_and_scales():
    one, two, three = some(3, 6, 0), some(2, 1, 1), some(4, 4, 2)
    state, config = merged([(*one, 0.5), (*two, 0.2), (*three, -0.3)])
    assert config["r"] == 9 and state[f"{NAME}.lora_A.weight"].shape == (9, 6)
    expected = 0.5 * added(*one) + 0.2 * added(*two) - 0.3 * added(*three)
    torch.testing.assert_close(added(state, config), expected)


def test_parts_of_weight_zero_cost_no_rank():
    one, two = some(3, 6, 0), some(2, 1, 1)
    state, config = merged([(*one, 0.0), (*two, 1.0)])
    assert config["r"] == 2
    torch.testing.assert_close(added(state, config), added(*two))
    state, config = merged([(*one, 0.0)])
    assert not added(state, config).any()


def test_other_layers_are_refused():
    one, (state, config) = some(3, 6, 0), some(2, 1, 1)
    other = {k.replace("to_q", "to_k"): v for k, v in state.items()}
    with pytest.raises(MarbleError, match="of different models or layers: 4 names differ"):
        merged([(*one, 0.5), (other, config, 0.5)])
    with pytest.raises(MarbleError, match="at least one"):
        merged([])
