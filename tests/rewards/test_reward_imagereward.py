"""ImageReward on a tiny checkpoint in its own layout, against the network written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from marble.errors import MarbleError
from marble.rewards import load
from marble.rewards.preprocess import Preprocess

W, SIDE, PATCH, LAYERS = 128, 32, 8, 2  # two heads of 64


def random_state():
    generator = torch.Generator().manual_seed(0)

    def new(*shape, scale=0.15):
        return scale * torch.randn(*shape, generator=generator)

    state = {}

    def linear(name, n_in, n_out):
        state[f"{name}.weight"], state[f"{name}.bias"] = new(n_out, n_in), new(n_out)

    def norm(name):
        state[f"{name}.weight"], state[f"{name}.bias"] = 1 + new(W), new(W)

    v, t = "blip.visual_encoder.", "blip.text_encoder."
    state[v + "cls_token"] = new(1, 1, W, scale=1)
    state[v + "pos_embed"] = new(1, (SIDE // PATCH) ** 2 + 1, W, scale=1)
    state[v + "patch_embed.proj.weight"] = new(W, 3, PATCH, PATCH)
    state[v + "patch_embed.proj.bias"] = new(W)
    norm(v + "norm")
    state[t + "embeddings.word_embeddings.weight"] = new(40, W, scale=1)
    state[t + "embeddings.position_embeddings.weight"] = new(64, W, scale=1)
    state[t + "embeddings.position_ids"] = torch.arange(64)[None]
    norm(t + "embeddings.LayerNorm")
    for i in range(LAYERS):
        block, layer = f"{v}blocks.{i}.", f"{t}encoder.layer.{i}."
        norm(block + "norm1"), norm(block + "norm2")
        linear(block + "attn.qkv", W, 3 * W), linear(block + "attn.proj", W, W)
        linear(block + "mlp.fc1", W, 2 * W), linear(block + "mlp.fc2", 2 * W, W)
        for kind in ("attention", "crossattention"):
            for name in ("query", "key", "value"):
                linear(f"{layer}{kind}.self.{name}", W, W)
            linear(f"{layer}{kind}.output.dense", W, W)
            norm(f"{layer}{kind}.output.LayerNorm")
        linear(layer + "intermediate.dense", W, 2 * W), linear(layer + "output.dense", 2 * W, W)
        norm(layer + "output.LayerNorm")
    for index, (n_in, n_out) in {0: (W, 32), 2: (32, 8), 4: (8, 1)}.items():
        linear(f"mlp.layers.{index}", n_in, n_out)
    return state


def attend(q, k, v, mask=None):
    def heads(x):
        return x.unflatten(-1, (-1, 64)).transpose(1, 2)

    weights = heads(q) @ heads(k).transpose(-1, -2) / 8
    if mask is not None:
        weights = weights.masked_fill(mask[:, None, None, :] == 0, -torch.inf)
    return (weights.softmax(-1) @ heads(v)).transpose(1, 2).flatten(-2)


def network(state, pixels, ids, mask):
    def linear(name, x):
        return F.linear(x, state[name + ".weight"], state[name + ".bias"])

    def norm(name, x, eps):
        return F.layer_norm(x, (W,), state[name + ".weight"], state[name + ".bias"], eps)

    v, t = "blip.visual_encoder.", "blip.text_encoder."
    p = v + "patch_embed.proj."
    x = F.conv2d(pixels, state[p + "weight"], state[p + "bias"], stride=PATCH)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([state[v + "cls_token"].expand(len(x), -1, -1), x], 1) + state[v + "pos_embed"]
    for i in range(LAYERS):
        b = f"{v}blocks.{i}."
        q, k, value = linear(b + "attn.qkv", norm(b + "norm1", x, 1e-6)).chunk(3, -1)
        x = x + linear(b + "attn.proj", attend(q, k, value))
        h = F.gelu(linear(b + "mlp.fc1", norm(b + "norm2", x, 1e-6)))
        x = x + linear(b + "mlp.fc2", h)
    seen = norm(v + "norm", x, 1e-6)
    y = state[t + "embeddings.word_embeddings.weight"][ids]
    y = y + state[t + "embeddings.position_embeddings.weight"][: ids.shape[1]]
    y = norm(t + "embeddings.LayerNorm", y, 1e-12)
    for i in range(LAYERS):
        b = f"{t}encoder.layer.{i}."
        for kind, other, hidden in (("attention", None, mask), ("crossattention", seen, None)):
            at = y if other is None else other
            a = b + kind
            parts = (linear(a + ".self.query", y), linear(a + ".self.key", at))
            out = attend(*parts, linear(a + ".self.value", at), hidden)
            y = norm(a + ".output.LayerNorm", linear(a + ".output.dense", out) + y, 1e-12)
        h = F.gelu(linear(b + "intermediate.dense", y))
        y = norm(b + "output.LayerNorm", linear(b + "output.dense", h) + y, 1e-12)
    z = y[:, 0]
    for index in (0, 2, 4):
        z = linear(f"mlp.layers.{index}", z)
    return (z.squeeze(-1) - 0.16717362830052426) / 1.0333394966054072


@pytest.fixture
def tokenizer_folder(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "red", "dog", "cat", "and"]
    tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )
    fast.save_pretrained(tmp_path / "words")
    return tmp_path / "words"


def test_imagereward_equals_the_network(tmp_path, tokenizer_folder, pictures, prompts):
    state = random_state()
    torch.save(state, tmp_path / "ImageReward.pt")
    options = {"path": tmp_path / "ImageReward.pt", "tokenizer": tokenizer_folder}
    reward = load("imagereward", batch_size=3, **options)
    scores = reward.score(pictures, prompts, [{}] * 7).numpy()
    tokens = reward.tokenizer(
        prompts, padding="max_length", truncation=True, max_length=35, return_tensors="pt"
    )
    pixels = Preprocess(SIDE, SIDE)(pictures)
    expected = network(state, pixels, tokens["input_ids"], tokens["attention_mask"]).numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert scores.std() > 0.01


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_neither_company_nor_batch_size_changes_a_score(
    dtype, tmp_path, tokenizer_folder, pictures, prompts
):
    torch.save(random_state(), tmp_path / "ImageReward.pt")
    options = {"path": tmp_path / "ImageReward.pt", "tokenizer": tokenizer_folder, "dtype": dtype}
    few, many = (load("imagereward", batch_size=n, **options) for n in (2, 7))
    together = many.score(pictures, prompts, [{}] * 7)
    alone = [many.score(p[None], [t], [{}]) for p, t in zip(pictures, prompts)]
    torch.testing.assert_close(torch.cat(alone), together, atol=1e-4, rtol=0)
    torch.testing.assert_close(few.score(pictures, prompts, [{}] * 7), together, atol=1e-4, rtol=0)


def test_a_damaged_checkpoint_is_one_clear_error(tmp_path, tokenizer_folder):
    state = random_state()
    del state["blip.visual_encoder.norm.weight"]
    torch.save(state, tmp_path / "ImageReward.pt")
    with pytest.raises(MarbleError, match=r"cannot load ImageReward"):
        load("imagereward", path=tmp_path / "ImageReward.pt", tokenizer=tokenizer_folder)
