"""In 16 bits only the weights are rounded: a score is the rounded model's in fp32."""

import copy

import pytest
import torch
from torch import nn

from marble.errors import MarbleError
from marble.rewards.clipscore import CLIPScore
from marble.rewards.geneval.mask2former import Mask2FormerDetector
from marble.rewards.precision import as_dtype, kept_in


def rounded(model, dtype):
    """The model in fp32 with the weights of its linear layers rounded to `dtype`."""
    model = copy.deepcopy(model).float()
    for layer in model.modules():
        if type(layer) is nn.Linear:
            for parameter in layer.parameters():
                parameter.data = parameter.data.to(dtype).float()
    return model


def linear_bytes(model):
    return sum(
        p.numel() * p.element_size()
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
        for p in layer.parameters()
    )


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_clip_scores_as_the_rounded_model_does_in_fp32(dtype, tiny_clip, pictures, prompts):
    exact, small = CLIPScore(tiny_clip), CLIPScore(tiny_clip, dtype=dtype)
    assert linear_bytes(small.encoder.model) == linear_bytes(exact.encoder.model) / 2
    found = small.score(pictures, prompts, [{}] * 7)
    assert not torch.equal(found, exact.score(pictures, prompts, [{}] * 7))
    small.encoder.model = rounded(exact.encoder.model, as_dtype(dtype))
    expected = small.score(pictures.clone(), prompts, [{}] * 7)  # not from the kept embeddings
    assert torch.equal(found, expected)


def test_the_detector_runs_in_bf16_as_the_rounded_one(tiny_mask2former):
    exact, small = (
        Mask2FormerDetector(tiny_mask2former, dtype=dtype, batch_size=2, short_side=64)
        for dtype in ("fp32", "bf16")
    )
    pixels = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        found = small.model(pixel_values=pixels)
        expected = rounded(exact.model, torch.bfloat16)(pixel_values=pixels)
    assert linear_bytes(small.model) < 0.8 * linear_bytes(exact.model)
    assert torch.equal(found.masks_queries_logits, expected.masks_queries_logits)
    assert torch.equal(found.class_queries_logits, expected.class_queries_logits)


def test_fp32_is_left_alone_and_other_names_are_refused():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    assert type(kept_in(model, torch.float32)[0]) is nn.Linear
    assert not any(p.requires_grad for p in model.parameters())
    with pytest.raises(MarbleError, match="use fp32, bf16 or fp16"):
        as_dtype("int8")
