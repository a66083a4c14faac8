"""Saving a reward model leaves the one in training as it was: the next stage goes on from it."""

import torch
from transformers import CLIPModel

from marble.studio.pretrain.reward_clip import new_clip, save_clip
from marble.studio.pretrain.tokenizer import build_tokenizer, save_tokenizer
from marble.studio.world import vocabulary


def test_saving_in_half_precision_does_not_round_the_model(tmp_path):
    torch.manual_seed(0)
    tokenizer = build_tokenizer(vocabulary())
    save_tokenizer(vocabulary(), tmp_path / "tokenizer")
    model = new_clip(tokenizer, width=32, layers=1, text_width=32, text_layers=1, projection=16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    save_clip(model, tmp_path / "tokenizer", tmp_path / "clip")
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    saved = CLIPModel.from_pretrained(tmp_path / "clip").state_dict()
    weight = next(name for name in before if name.endswith("q_proj.weight"))
    assert torch.equal(saved[weight].float(), before[weight].half().float())
