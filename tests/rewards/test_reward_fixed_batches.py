"""In reduced precision a model sees batches of one shape, however many pictures there are."""

import pytest
import torch
from safetensors.torch import save_file

from marble.rewards.aesthetic import Aesthetic, AestheticHead
from marble.rewards.batches import filled
from marble.rewards.clip import ClipEncoder
from marble.rewards.clipscore import CLIPScore
from marble.rewards.hpsv2 import HPSv2
from marble.rewards.pickscore import PickScore

BATCH = 4


@pytest.fixture
def new_reward(tiny_clip, tmp_path):
    """Makes a reward whose encoder is its own: the shared one would keep its batch size."""

    def make(reward_class, dtype):
        options = {}
        if reward_class is Aesthetic:
            save_file(AestheticHead([24, 1]).state_dict(), str(tmp_path / "h.safetensors"))
            options = {"head": tmp_path / "h.safetensors"}
        reward = reward_class(tiny_clip, dtype=dtype, **options)
        shared = reward.encoder
        reward.encoder = ClipEncoder(
            shared.model,
            shared.tokenizer,
            shared.preprocess,
            dtype=shared.dtype,
            batch_size=BATCH,
        )
        return reward

    return make


def shapes_seen(encoder, monkeypatch):
    """Shapes of what both towers are given from now on."""
    seen = {"pixel_values": [], "input_ids": []}

    def spy(name, key):
        original = getattr(encoder.model, name)

        def run(**inputs):
            seen[key].append(tuple(inputs[key].shape))
            return original(**inputs)

        monkeypatch.setattr(encoder.model, name, run)

    spy("get_image_features", "pixel_values")
    spy("get_text_features", "input_ids")
    return seen


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_clip_sees_one_shape_whatever_the_number(dtype, new_reward, pictures, prompts, monkeypatch):
    reward = new_reward(CLIPScore, dtype)
    seen = shapes_seen(reward.encoder, monkeypatch)
    for n in range(1, 8):
        scores = reward.score(pictures[:n], prompts[:n], [{}] * n)
        assert scores.shape == (n,)
    assert set(seen["pixel_values"]) == {(BATCH, 3, 32, 32)}
    assert set(seen["input_ids"]) == {(BATCH, reward.encoder.max_tokens)}
    calls = sum(1 if n <= BATCH else 2 for n in range(1, 8))
    assert len(seen["pixel_values"]) == calls


def test_fp32_computes_nothing_in_vain(new_reward, pictures, prompts, monkeypatch):
    reward = new_reward(CLIPScore, "fp32")
    seen = shapes_seen(reward.encoder, monkeypatch)
    reward.score(pictures, prompts, [{}] * 7)
    assert [shape[0] for shape in seen["pixel_values"]] == [4, 3]
    reward.score(pictures[:1], ["a cat"], [{}])
    assert seen["input_ids"][-1][0] == 1
    assert seen["input_ids"][-1][1] < reward.encoder.max_tokens


@pytest.mark.parametrize("reward_class", [CLIPScore, PickScore, HPSv2, Aesthetic])
def test_alone_or_in_company_the_bits_are_the_same(reward_class, new_reward, pictures, prompts):
    reward = new_reward(reward_class, "bf16")
    together = reward.score(pictures, prompts, [{}] * 7)
    alone = [reward.score(p[None], [t], [{}]) for p, t in zip(pictures, prompts)]
    assert together.std() > 1e-3
    assert torch.equal(torch.cat(alone), together)


def test_the_added_rows_change_no_score(new_reward, pictures, prompts):
    """Seven pictures in batches of four: the second has one row of filling."""
    reward = new_reward(CLIPScore, "bf16")
    filling = reward.score(pictures, prompts, [{}] * 7)
    reward.encoder.batch_size = 7
    none = reward.score(pictures.clone(), prompts, [{}] * 7)
    torch.testing.assert_close(filling, none, atol=1e-4, rtol=0)


def test_filled():
    rows = torch.arange(6).reshape(3, 2)
    assert filled(rows, 5, torch.bfloat16).tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]
    assert filled(["a", "b"], 4, torch.float16) == ["a", "b", "b", "b"]
    assert filled(rows, 5, torch.float32) is rows
    assert filled(rows, 3, torch.bfloat16) is rows
    assert filled(rows[:0], 3, torch.bfloat16).shape == (0, 2)
