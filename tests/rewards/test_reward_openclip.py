"""HPSv2's checkpoint is open_clip's: our reading of it against that network, written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from _tiny_clip import new_tiny_clip
from PIL import Image
from transformers import AutoTokenizer, CLIPConfig

from marble.errors import MarbleError
from marble.rewards import load
from marble.rewards.preprocess import Preprocess


def random_state(config):
    """Random weights in open_clip's names and shapes."""
    generator = torch.Generator().manual_seed(0)

    def new(*shape, scale=0.3):
        return scale * torch.randn(*shape, generator=generator)

    text, vision, joint = config.text_config, config.vision_config, config.projection_dim
    cells = (vision.image_size // vision.patch_size) ** 2
    state = {
        "logit_scale": torch.tensor(4.0),
        "token_embedding.weight": new(text.vocab_size, text.hidden_size),
        "positional_embedding": new(text.max_position_embeddings, text.hidden_size),
        "text_projection": new(text.hidden_size, joint),
        "visual.class_embedding": new(vision.hidden_size),
        "visual.positional_embedding": new(cells + 1, vision.hidden_size),
        "visual.conv1.weight": new(vision.hidden_size, 3, vision.patch_size, vision.patch_size),
        "visual.proj": new(vision.hidden_size, joint),
    }
    norms = {"ln_final": text, "visual.ln_pre": vision, "visual.ln_post": vision}
    for prefix, part in (("transformer", text), ("visual.transformer", vision)):
        width, inner = part.hidden_size, part.intermediate_size
        for i in range(part.num_hidden_layers):
            block = f"{prefix}.resblocks.{i}"
            norms |= {f"{block}.ln_1": part, f"{block}.ln_2": part}
            for name, shape in {
                "attn.in_proj_weight": (3 * width, width),
                "attn.in_proj_bias": (3 * width,),
                "attn.out_proj.weight": (width, width),
                "attn.out_proj.bias": (width,),
                "mlp.c_fc.weight": (inner, width),
                "mlp.c_fc.bias": (inner,),
                "mlp.c_proj.weight": (width, inner),
                "mlp.c_proj.bias": (width,),
            }.items():
                state[f"{block}.{name}"] = new(*shape)
    for name, part in norms.items():
        state[f"{name}.weight"] = 1 + new(part.hidden_size, scale=0.1)
        state[f"{name}.bias"] = new(part.hidden_size, scale=0.1)
    return state


def run_blocks(state, prefix, x, heads, layers, mask):
    for i in range(layers):
        p = f"{prefix}.resblocks.{i}."
        width = x.shape[-1]

        def norm(y, name, p=p, width=width):
            return F.layer_norm(y, (width,), state[p + name + ".weight"], state[p + name + ".bias"])

        y = norm(x, "ln_1").transpose(0, 1)
        attended, _ = F.multi_head_attention_forward(
            y, y, y, width, heads,
            state[p + "attn.in_proj_weight"], state[p + "attn.in_proj_bias"],
            None, None, False, 0.0,
            state[p + "attn.out_proj.weight"], state[p + "attn.out_proj.bias"],
            training=False, need_weights=False, attn_mask=mask,
        )  # fmt: skip
        x = x + attended.transpose(0, 1)
        h = F.gelu(
            F.linear(norm(x, "ln_2"), state[p + "mlp.c_fc.weight"], state[p + "mlp.c_fc.bias"])
        )
        x = x + F.linear(h, state[p + "mlp.c_proj.weight"], state[p + "mlp.c_proj.bias"])
    return x


def network(state, config, pixels, ids):
    """open_clip's forward pass, with torch's own attention."""
    vision, text = config.vision_config, config.text_config
    x = F.conv2d(pixels, state["visual.conv1.weight"], stride=vision.patch_size)
    x = x.flatten(2).transpose(1, 2)
    first = state["visual.class_embedding"].expand(len(x), 1, -1)
    x = torch.cat([first, x], 1) + state["visual.positional_embedding"]
    shape = (vision.hidden_size,)
    x = F.layer_norm(x, shape, state["visual.ln_pre.weight"], state["visual.ln_pre.bias"])
    x = run_blocks(
        state, "visual.transformer", x, vision.num_attention_heads, vision.num_hidden_layers, None
    )
    x = F.layer_norm(x[:, 0], shape, state["visual.ln_post.weight"], state["visual.ln_post.bias"])
    image = F.normalize(x @ state["visual.proj"], dim=-1)
    t = state["token_embedding.weight"][ids] + state["positional_embedding"][: ids.shape[1]]
    causal = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)
    t = run_blocks(
        state, "transformer", t, text.num_attention_heads, text.num_hidden_layers, causal
    )
    shape = (text.hidden_size,)
    t = F.layer_norm(t, shape, state["ln_final.weight"], state["ln_final.bias"])
    end = (ids == text.eos_token_id).int().argmax(-1)
    t = t[torch.arange(len(ids)), end] @ state["text_projection"]
    return (image * F.normalize(t, dim=-1)).sum(-1)


def authors_pixels(picture, side):
    """Their way with a picture, in PIL: all of it, longer side ``side``, pasted onto black."""
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    scale = side / max(image.size)
    image = image.resize([round(n * scale) for n in image.size], Image.Resampling.BICUBIC)
    black = Image.new("RGB", (side, side))
    black.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    pixels = torch.from_numpy(np.asarray(black).copy()).permute(2, 0, 1) / 255
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    return (pixels - mean) / torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)


@pytest.mark.parametrize("size", [(48, 72), (72, 48), (33, 33), (32, 32), (31, 500), (20, 32)])
def test_pictures_are_fitted_in_and_padded(size):
    generator = torch.Generator().manual_seed(size[0])
    pictures = torch.randint(0, 256, (2, 3, *size), generator=generator, dtype=torch.uint8)
    expected = torch.stack([authors_pixels(picture, side=32) for picture in pictures])
    ours = Preprocess(short_side=32, crop=32, pad=True)(pictures)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
    cropped = Preprocess(short_side=32, crop=32)(pictures)
    assert torch.equal(ours, cropped) == (size[0] == size[1])  # the same on square pictures


@pytest.fixture
def base(tmp_path):
    folder = new_tiny_clip(tmp_path / "base")
    config = CLIPConfig.from_pretrained(folder)
    for part in (config, config.text_config, config.vision_config):  # as CLIP-H's config says
        part.hidden_act = "gelu"
    config.save_pretrained(folder)
    return folder


def test_hpsv2_equals_open_clips_network(base, tmp_path, pictures, prompts):
    config = CLIPConfig.from_pretrained(base)
    state = random_state(config)
    torch.save({"epoch": 1, "state_dict": state}, tmp_path / "hps.pt")
    reward = load("hpsv2", path=tmp_path / "hps.pt", processor=base)
    scores = reward.score(pictures, prompts, [{}] * 7).numpy()
    pixels = torch.stack([authors_pixels(picture, side=32) for picture in pictures])
    tokenizer = AutoTokenizer.from_pretrained(base)
    ids = tokenizer(prompts, padding=True, truncation=True, max_length=12, return_tensors="pt")
    expected = network(state, config, pixels, ids["input_ids"]).numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert scores.std() > 0.01


def test_a_checkpoint_in_half_precision_scores_in_the_precision_asked_for(
    base, tmp_path, pictures, prompts
):
    """The published file is fp16."""
    state = random_state(CLIPConfig.from_pretrained(base))
    torch.save({"state_dict": {k: v.half() for k, v in state.items()}}, tmp_path / "half.pt")
    torch.save({"state_dict": {k: v.half().float() for k, v in state.items()}}, tmp_path / "f.pt")
    half, whole = (load("hpsv2", path=tmp_path / f, processor=base) for f in ("half.pt", "f.pt"))
    assert half.encoder.model.dtype == torch.float32
    args = (pictures, prompts, [{}] * 7)
    torch.testing.assert_close(half.score(*args), whole.score(*args), atol=1e-6, rtol=0)


def test_missing_parts_are_named(base, tmp_path):
    state = random_state(CLIPConfig.from_pretrained(base))
    del state["visual.proj"]
    torch.save(state, tmp_path / "hps.pt")
    with pytest.raises(MarbleError, match="visual_projection"):
        load("hpsv2", path=tmp_path / "hps.pt", processor=base)
    with pytest.raises(MarbleError, match="give its base model"):
        load("clipscore", path=tmp_path / "hps.pt")
    with pytest.raises(MarbleError, match="no such file"):
        load("hpsv2", path=tmp_path / "nothing.pt", processor=base)
