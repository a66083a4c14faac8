"""The CLIP-family scores against transformers' own processor and model call."""

import json

import numpy as np
import pytest
import torch
from _tiny_clip import new_tiny_clip
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoTokenizer, CLIPModel

from marble.errors import MarbleError
from marble.rewards import RewardSet, load
from marble.rewards.aesthetic import Aesthetic, AestheticHead, load_head
from marble.rewards.clipscore import CLIPScore
from marble.rewards.hpsv2 import HPSv2
from marble.rewards.pickscore import PickScore
from marble.rewards.preprocess import Preprocess

try:  # transformers 5 keeps the PIL processor under its own name
    from transformers import CLIPImageProcessorPil as UpstreamProcessor
except ImportError:
    from transformers import CLIPImageProcessor as UpstreamProcessor


def upstream(folder, pictures, prompts):
    """Cosines and image embeddings as the upstream library computes them, picture by picture."""
    model = CLIPModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    processor = UpstreamProcessor.from_pretrained(folder)
    logits, embeddings = [], []
    for picture, prompt in zip(pictures, prompts):
        image = Image.fromarray(picture.permute(1, 2, 0).numpy())
        pixels = processor(images=image, return_tensors="pt")["pixel_values"]
        tokens = tokenizer([prompt], truncation=True, max_length=12, return_tensors="pt")
        tokens.pop("token_type_ids", None)
        with torch.no_grad():
            output = model(pixel_values=pixels, **tokens)
        logits.append(float(output.logits_per_image))
        embeddings.append(output.image_embeds[0])
    scale = float(model.logit_scale.detach().exp())
    return np.array(logits), scale, torch.stack(embeddings)


def metas(n):
    return [{"source": "general"}] * n


def test_clipscore_equals_upstream(tiny_clip, pictures, prompts):
    logits, scale, _ = upstream(tiny_clip, pictures, prompts)
    scores = CLIPScore(tiny_clip).score(pictures, prompts, metas(7)).numpy()
    np.testing.assert_allclose(scores, logits / scale, atol=1e-5)
    assert scores.std() > 0.01  # the pictures are told apart, so equality means something


def test_pickscore_equals_upstream(tiny_clip, pictures, prompts):
    logits, _, _ = upstream(tiny_clip, pictures, prompts)
    scores = PickScore(tiny_clip).score(pictures, prompts, metas(7)).numpy()
    np.testing.assert_allclose(scores, logits, atol=2e-5)


def test_aesthetic_equals_an_independent_head(tiny_clip, pictures, prompts, tmp_path):
    torch.manual_seed(1)
    layers = torch.nn.Sequential(  # LAION's layout: dropout takes up indices, no activation
        torch.nn.Linear(24, 16),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(16, 8),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(8, 1),
    ).eval()
    state = {f"layers.{k}": v for k, v in layers.state_dict().items()}
    save_file(state, str(tmp_path / "head.safetensors"))
    torch.save(state, tmp_path / "head.pth")
    _, _, embeddings = upstream(tiny_clip, pictures, prompts)
    expected = layers(embeddings).squeeze(-1).detach().numpy()
    for file in ("head.safetensors", "head.pth"):
        scores = Aesthetic(tiny_clip, head=tmp_path / file).score(pictures, prompts, metas(7))
        np.testing.assert_allclose(scores.numpy(), expected, atol=1e-5)


def test_head_with_activation_differs_from_the_linear_one(tmp_path):
    torch.manual_seed(2)
    head = AestheticHead([4, 3, 1], "gelu")
    save_file(head.state_dict(), str(tmp_path / "h.safetensors"), metadata={"activation": "gelu"})
    x = torch.randn(5, 4)
    again = load_head(tmp_path / "h.safetensors")
    torch.testing.assert_close(again(x), head(x))
    by_hand = torch.nn.functional.gelu(x @ head.layers[0].weight.T + head.layers[0].bias)
    torch.testing.assert_close(head(x), (head.layers[1](by_hand)).squeeze(-1))


def test_a_pickled_head_is_refused(tmp_path):
    class Malicious:
        def __reduce__(self):
            return (open, (str(tmp_path / "broken-into"), "w"))

    torch.save({"layers.0.weight": Malicious()}, tmp_path / "evil.pth")
    with pytest.raises(MarbleError, match="cannot read the aesthetic head"):
        load_head(tmp_path / "evil.pth")
    assert not (tmp_path / "broken-into").exists()


def test_head_of_another_width_is_refused(tiny_clip, tmp_path):
    save_file(AestheticHead([7, 1]).state_dict(), str(tmp_path / "h.safetensors"))
    with pytest.raises(MarbleError, match="do not belong together"):
        Aesthetic(tiny_clip, head=tmp_path / "h.safetensors")


def test_bf16_is_close(tiny_clip, pictures, prompts):
    exact = CLIPScore(tiny_clip).score(pictures, prompts, metas(7))
    rough = CLIPScore(tiny_clip, dtype="bf16").score(pictures, prompts, metas(7))
    assert rough.dtype == torch.float32
    assert 0 < (exact - rough).abs().max() < 0.05


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("reward_class", [CLIPScore, PickScore, HPSv2, Aesthetic])
def test_neither_company_nor_batch_size_changes_a_score(
    reward_class, dtype, tiny_clip, pictures, prompts, tmp_path
):
    """1e-5 in either precision: on this machine's CPU; the loop benchmark tells it of a GPU."""
    options = {}
    if reward_class is Aesthetic:
        save_file(AestheticHead([24, 1]).state_dict(), str(tmp_path / "h.safetensors"))
        options = {"head": tmp_path / "h.safetensors"}
    reward = reward_class(tiny_clip, dtype=dtype, **options)
    together = reward.score(pictures, prompts, metas(7))
    alone = [reward.score(p[None], [t], metas(1)) for p, t in zip(pictures, prompts)]
    assert together.std() > 1e-3
    torch.testing.assert_close(torch.cat(alone), together, atol=1e-5, rtol=0)
    reward.encoder.batch_size = 3
    try:
        again = reward.score(pictures.clone(), prompts, metas(7))  # not from the kept embeddings
    finally:
        reward.encoder.batch_size = 64
    torch.testing.assert_close(again, together, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [(48, 72), (72, 48), (33, 33), (32, 32), (31, 500), (64, 64)])
def test_preprocessing_equals_upstream(tiny_clip, size):
    generator = torch.Generator().manual_seed(size[0])
    pictures = torch.randint(0, 256, (2, 3, *size), generator=generator, dtype=torch.uint8)
    processor = UpstreamProcessor.from_pretrained(tiny_clip)
    images = [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in pictures]
    expected = processor(images=images, return_tensors="pt")["pixel_values"]
    ours = Preprocess.from_folder(tiny_clip)(pictures)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


def test_preprocess_settings_survive_a_round_trip(tmp_path):
    settings = Preprocess(short_side=64, crop=64, mean=(0.5,) * 3, std=(0.25,) * 3)
    settings.to_file(tmp_path)
    assert Preprocess.from_folder(tmp_path) == settings
    raw = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert raw["image_processor_type"] == "CLIPImageProcessor"


def test_rewards_on_one_checkpoint_share_model_and_embeddings(
    tiny_clip, pictures, prompts, tmp_path
):
    save_file(AestheticHead([24, 1]).state_dict(), str(tmp_path / "h.safetensors"))
    clip = CLIPScore(tiny_clip)
    aesthetic = Aesthetic(tiny_clip, head=tmp_path / "h.safetensors")
    assert clip.encoder is aesthetic.encoder
    calls = []
    original = clip.encoder.model.get_image_features
    clip.encoder.model.get_image_features = lambda **kw: calls.append(1) or original(**kw)
    try:
        RewardSet([clip, aesthetic]).score(pictures, prompts, metas(7))
        assert len(calls) == 1
        pictures[0, 0, 0, 0] += 1  # changed in place: the kept embeddings are stale
        clip.score(pictures, prompts, metas(7))
        assert len(calls) == 2
    finally:
        del clip.encoder.model.get_image_features


def test_text_tower_runs_once_for_a_repeated_prompt(tiny_clip):
    encoder = CLIPScore(tiny_clip).encoder
    once = encoder.embed_texts(["a cat", "a red dog"])
    many = encoder.embed_texts(["a cat", "a red dog", "a cat", "a cat"])
    torch.testing.assert_close(many, once[[0, 1, 0, 0]])


def test_another_checkpoint_is_another_model(tiny_clip, tmp_path, pictures, prompts):
    other = new_tiny_clip(tmp_path / "other", seed=9)
    a = CLIPScore(tiny_clip).score(pictures, prompts, metas(7))
    b = CLIPScore(other).score(pictures, prompts, metas(7))
    assert (a - b).abs().max() > 1e-3


def test_missing_and_truncated_weights_are_one_clear_error(tiny_clip, tmp_path):
    with pytest.raises(MarbleError, match="no such folder"):
        CLIPScore(tmp_path / "nowhere" / "deep")
    broken = new_tiny_clip(tmp_path / "broken")
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(MarbleError, match="cannot load the CLIP model"):
        CLIPScore(broken)
    bare = new_tiny_clip(tmp_path / "bare")
    (bare / "preprocessor_config.json").unlink()
    with pytest.raises(MarbleError, match="no preprocessor_config"):
        CLIPScore(bare)


def test_processor_from_elsewhere(tiny_clip, tmp_path, pictures, prompts):
    """PickScore's own folder has no tokenizer: it comes from the CLIP-H it was tuned from."""
    bare = new_tiny_clip(tmp_path / "bare")
    for file in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (bare / file).unlink()
    with_processor = load("pickscore", path=bare, processor=tiny_clip)
    own = load("pickscore", path=tiny_clip)
    torch.testing.assert_close(
        with_processor.score(pictures, prompts, metas(7)), own.score(pictures, prompts, metas(7))
    )
