"""Rewards by name."""

import re

import pytest
import torch
from _tiny_clip import new_tiny_clip

from marble.errors import MarbleError
from marble.rewards import REGISTRY, RewardSet, check, load, names
from marble.rewards.aesthetic import Aesthetic
from marble.rewards.clipscore import CLIPScore
from marble.rewards.hpsv2 import HPSv2
from marble.rewards.imagereward import ImageReward
from marble.rewards.pickscore import PickScore
from marble.rewards.presence import Absent, Wanted

IMAGES = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
METADATA = [{"source": "general"}] * 2
REAL = ["clipscore", "pickscore", "hpsv2", "imagereward", "aesthetic", "geneval"]

OWN = """
from marble.rewards import Reward

def lightness(images, prompts, metadata, gain=1.0):
    return [gain * float(image.float().mean()) for image in images]

class Constant(Reward):
    range = (0.0, 5.0)

    def __init__(self, value=1.0):
        self.value = value

    def score(self, images, prompts, metadata):
        return [self.value] * len(images)

not_callable = 3
"""


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    return file


def test_a_function_of_a_file(own):
    reward = load(f"{own}:lightness")
    assert reward.name == "lightness"
    assert RewardSet([reward]).score(IMAGES + 4, ["a", "b"], METADATA).tolist() == [[4, 4]]


def test_options_reach_functions_and_classes(own):
    assert load(f"{own}:lightness", gain=0.5).score(IMAGES + 4, ["a", "b"], METADATA) == [2, 2]
    reward = load(f"{own}:Constant", value=3.0, name="three", device="cpu")
    assert reward.name == "three" and reward.range == (0.0, 5.0)
    assert reward.score(IMAGES, ["a", "b"], METADATA) == [3.0, 3.0]


def test_an_importable_callable():
    reward = load("statistics:mean")
    assert reward.name == "mean"


def test_sources_restrict(own):
    reward = load(f"{own}:lightness", sources=["ocr"])
    metadata = [{"source": "ocr"}, {"source": "general"}]
    scores = RewardSet([reward]).score(IMAGES + 4, ["a", "b"], metadata)
    assert scores[0, 0] == 4 and scores[0, 1] != scores[0, 1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("clipscor", "did you mean clipscore"),
        ("studio-clap", "did you mean studio-clip"),
        ("zzz", "Built in: .*studio-realism"),
        ("no.such.module:f", "cannot import no.such.module"),
        ("statistics:maen", "did you mean mean"),
        ("nowhere.py:f", "nowhere.py does not exist"),
    ],
)
def test_mistakes_say_what_to_do(asked, said):
    with pytest.raises(MarbleError, match=said):
        load(asked)


def test_wrong_options_name_the_option(own):
    with pytest.raises(MarbleError, match="colour"):
        load(f"{own}:Constant", colour="red")
    with pytest.raises(MarbleError, match="temperature"):
        load("ocr", engine="ppocr-rec", temperature=3)


def test_a_file_that_does_not_run_is_one_error(tmp_path):
    (tmp_path / "bad.py").write_text("1/0")
    with pytest.raises(MarbleError, match="ZeroDivisionError"):
        load(f"{tmp_path / 'bad.py'}:f")


def test_something_that_is_no_reward(own):
    with pytest.raises(MarbleError, match=r"not_callable: 3 is neither a function nor a reward"):
        load(f"{own}:not_callable")


def test_the_names():
    assert {"ocr", "studio-clip", "studio-pick", "studio-aesthetic", "studio-geneval"} <= set(
        names()
    )
    assert [name for name in names() if REGISTRY[name].held_out] == [
        "studio-clip2",
        "studio-realism",
    ]
    for name in REAL:  # real names belong to real checkpoints
        assert not REGISTRY[name].options()


def test_check_finds_what_is_there_without_loading(own, tmp_path):
    folder = new_tiny_clip(tmp_path / "clip")
    (folder / "model.safetensors").unlink()  # nothing is read, so this goes unnoticed
    assert str(folder) in check("clipscore", path=folder)
    assert "rec" in check("ocr")
    assert check(f"{own}:Constant") == "needs no weights"
    assert "lightness" in check(f"{own}:lightness")


@pytest.mark.parametrize("name", REAL)
def test_check_says_how_to_fetch_what_is_missing(name, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(Absent, match=r"not on this machine; fetch (it|them) with `hf download"):
        check(name)
    with pytest.raises(MarbleError, match="does not exist"):
        check(name, path=tmp_path / "absent", head=__file__, clip=tmp_path, tokenizer=tmp_path)


def snapshot(cache, repo, revision, *files):
    """Files of a repository as they lie in the hub's cache."""
    root = cache / f"models--{repo.replace('/', '--')}"
    folder = root / "snapshots" / revision
    folder.mkdir(parents=True, exist_ok=True)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / "main").write_text(revision)
    for file in files:
        (folder / file).write_text("")
    return folder


def test_all_that_is_missing_is_named_at_once_and_what_is_there_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Absent) as nothing:
        check("geneval")
    detector, clip = nothing.value.commands
    assert detector.startswith("hf download facebook/mask2former-swin-small-coco-instance ")
    assert clip == (
        "hf download openai/clip-vit-large-patch14 --revision "
        "32bd64288804d66eefd0ccbe215aa642df71cc41 "
        "--include '*.safetensors' --include '*.json' --include '*.txt'"
    )
    with pytest.raises(Absent) as nothing:
        check("hpsv2")
    weights, processor = nothing.value.commands
    assert "xswu/HPSv2 HPS_v2.1_compressed.pt --revision" in weights
    assert "laion/" in processor and "safetensors" not in processor  # not 4 GB for a tokenizer
    other = snapshot(tmp_path, "openai/clip-vit-large-patch14", CLIPScore.default_revision)
    with pytest.raises(Absent):  # a snapshot without its weights is not the checkpoint
        check("clipscore")
    (other / "model.safetensors").write_text("")
    assert check("clipscore") == f"weights in {other}"
    with pytest.raises(Absent) as half:
        check("geneval")
    assert half.value.commands == [detector]


def test_every_download_but_the_detectors_is_pinned():
    """The detector's hub folder has not changed since 2023; its full hash is not known here."""
    loose = [
        wanted.repo
        for reward in (CLIPScore, PickScore, HPSv2, Aesthetic)
        for wanted in reward.wanted()
        if not re.fullmatch("[0-9a-f]{40}", wanted.pinned or "")
    ]
    assert loose == []
    assert re.fullmatch("[0-9a-f]{40}", Wanted(ImageReward.default_tokenizer).pinned)
    assert re.fullmatch("[0-9a-f]{40}", ImageReward.default_revision)
