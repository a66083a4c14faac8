"""The studio's reward training: its parts by their properties, and every line once."""

import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from marble.rewards.geneval.centernet import STRIDE, CenterNet, CenterNetDetector, DetectorConfig
from marble.studio.pretrain.common import Budget
from marble.studio.pretrain.reward_acceptance import BOUNDS, retrieval
from marble.studio.pretrain.reward_clip import contrastive_loss
from marble.studio.pretrain.reward_data import Objects, from_world, with_errors
from marble.studio.pretrain.reward_detector import (
    detection_loss,
    jiggle,
    melt_some,
    platt,
    targets,
    train_detector,
)
from marble.studio.pretrain.reward_look import aesthetic_label, beauty, mild, spoil
from marble.studio.pretrain.rewards import train_reward_models
from marble.studio.pretrain.tokenizer import save_tokenizer
from marble.studio.world import CLASSES, COLORS, vocabulary


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(vocabulary(), folder)
    return folder


@pytest.fixture(scope="module")
def worlds(tokenizer_folder):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    cpu = torch.device("cpu")
    return [
        from_world(*with_errors(n, seed, 1, split), tokenizer, cpu)
        for n, seed, split in ((192, 1, "train"), (96, 2, "test"))
    ]


def one_object(x0, y0, x1, y1, label=5, color=2):
    boxes = torch.zeros(1, 2, 4)
    boxes[0, 0] = torch.tensor([x0, y0, x1, y1], dtype=torch.float32)
    return Objects(boxes, torch.tensor([[label, -1]]), torch.tensor([[color, -1]]))


def test_targets_are_what_the_detector_decodes():
    """Perfect maps made from the targets give the boxes back."""
    objects = one_object(10, 20, 34, 41)
    goal = targets(objects, len(CLASSES), 16)
    assert goal["heat"].max() == 1 and (goal["heat"] == 1).sum() == 1
    detector = CenterNetDetector(CenterNet(DetectorConfig(list(CLASSES), list(COLORS), 8)))
    heat = torch.logit(goal["heat"].clamp(1e-4, 1 - 1e-4))
    box = torch.zeros(1, 4, 16, 16)
    box[0, :, goal["y"][0, 0], goal["x"][0, 0]] = goal["box"][0, 0]
    (found,) = detector.decode(heat, box, torch.zeros(1, len(COLORS), 16, 16))
    assert found.labels[0] == CLASSES[5]
    np.testing.assert_allclose(found.boxes[0], [10, 20, 34, 41], atol=1e-4)


def test_the_detection_loss_is_least_at_the_truth():
    objects = one_object(10, 20, 34, 41)
    goal = targets(objects, 3 + 5, 16)
    heat = torch.logit(goal["heat"].clamp(1e-4, 1 - 1e-4))
    box = torch.zeros(1, 4, 16, 16)
    row, column = goal["y"][0, 0], goal["x"][0, 0]
    box[0, :, row, column] = goal["box"][0, 0]
    color = torch.zeros(1, len(COLORS), 16, 16)
    color[0, 2] = 20.0
    best = detection_loss((heat, box, color), goal, objects.colors)
    for worse in (
        (-heat, box, color),
        (heat, box + 1, color),
        (heat, box, -color),
    ):
        assert detection_loss(worse, goal, objects.colors) > best + 0.1


def test_jiggle_moves_boxes_with_their_pictures():
    torch.manual_seed(0)
    n = 64
    x = torch.zeros(n, 3, 64, 64)
    x[:, :, 20:40, 16:44] = 1
    boxes = torch.tensor([16.0, 20.0, 44.0, 40.0]).expand(n, 1, 4)
    moved, objects = jiggle(x, Objects(boxes, torch.zeros(n, 1).long(), torch.zeros(n, 1).long()))
    for picture, box, label in zip(moved[:, 0], objects.boxes[:, 0], objects.labels[:, 0]):
        assert label == 0
        columns = (picture > 0.5).any(0).nonzero().flatten()
        rows = (picture > 0.5).any(1).nonzero().flatten()
        seen = torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        assert (seen - box).abs().max() <= 1.1
    assert len(objects.boxes.unique(dim=0)) > n // 3  # half of them stay where they are


def test_every_eighth_picture_is_melted_and_empty(worlds):
    x, objects = worlds[0].with_objects(torch.arange(64))
    melted, left = melt_some(x, objects)
    changed = (melted != x).flatten(1).any(1)
    assert changed.tolist() == [True] * 8 + [False] * 56
    assert (left.labels[:8] == -1).all()
    torch.testing.assert_close(left.labels[8:], objects.labels[8:])
    assert (objects.labels[:8] >= 0).any()  # the originals are untouched


def test_an_object_that_leaves_the_picture_is_no_longer_one():
    torch.manual_seed(1)
    n = 200
    corner = torch.tensor([0.0, 0.0, 4.0, 4.0]).expand(n, 1, 4)
    labels = torch.zeros(n, 1).long()
    _, objects = jiggle(torch.zeros(n, 3, 64, 64), Objects(corner, labels, labels))
    gone = objects.labels[:, 0] == -1
    assert 0 < gone.float().mean() < 0.5
    assert (objects.boxes >= 0).all() and (objects.boxes <= 64).all()


def test_platt_recovers_the_logistic_curve():
    generator = torch.Generator().manual_seed(0)
    logit = torch.randn(20_000, generator=generator, dtype=torch.float64) * 2
    chance = torch.sigmoid(2.5 * logit - 1)
    truth = (torch.rand(20_000, generator=generator, dtype=torch.float64) < chance).double()
    slope, offset = platt(logit, truth)
    assert slope == pytest.approx(2.5, abs=0.15) and offset == pytest.approx(-1, abs=0.1)


def test_copies_with_errors_share_prompts_but_not_pictures(worlds):
    train, held_out = worlds
    assert not set(train.prompts) & set(held_out.prompts)
    differs = (train.images != train.broken).flatten(1).any(1)
    assert differs.all()
    same = train.same.tolist()
    assert all(
        (train.prompts[i] == train.prompts[j]) == (same[i] == same[j])
        for i in range(40)
        for j in range(40)
    )


def test_mild_is_mild_and_spoiling_grows_with_severity(worlds):
    torch.manual_seed(0)
    x = worlds[0].images[:132].float() / 255
    harm = (mild(x) - x).abs().mean()
    torch.manual_seed(0)
    little = (spoil(x, torch.full((132,), 0.1)) - x).abs().flatten(1).mean(1)
    torch.manual_seed(0)
    much = (spoil(x, torch.full((132,), 0.9)) - x).abs().flatten(1).mean(1)
    assert 0 < harm < 0.06
    assert (much > little).float().mean() > 0.97
    assert spoil(x, torch.rand(132)).min() >= 0 and spoil(x, torch.rand(132)).max() <= 1


def test_beauty_measures_what_it_says():
    grey = torch.full((1, 3, 64, 64), 0.5)
    centre, corner, red = grey.clone(), grey.clone(), grey.clone()
    centre[:, 0, 16:48, 16:48] = 1.0
    corner[:, 0, 0:32, 0:32] = 1.0
    red[:, 0], red[:, 1:] = 1.0, 0.2
    busy = grey + 0.3 * torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    vivid, warm, centred, calm = range(4)
    assert beauty(red)[0, vivid] > beauty(grey)[0, vivid]
    assert beauty(red)[0, warm] > beauty(grey)[0, warm] > beauty(red.flip(1))[0, warm]
    assert beauty(centre)[0, centred] > beauty(corner)[0, centred]
    assert beauty(centre)[0, centred] > beauty(grey)[0, centred]
    assert beauty(grey)[0, calm] > beauty(busy.clamp(0, 1))[0, calm]
    zero, one = torch.zeros(4), torch.ones(4)
    clean = aesthetic_label(beauty(red), zero, one, torch.zeros(1))
    assert (aesthetic_label(beauty(red), zero, one, torch.ones(1)) < clean).all()


def test_contrastive_loss_ignores_equal_captions_and_counts_broken_copies():
    torch.manual_seed(0)
    unit = torch.nn.functional.normalize
    texts = unit(torch.randn(4, 8), dim=-1)
    scale = torch.tensor(20.0)
    different, equal = torch.arange(4), torch.tensor([0, 1, 2, 0])
    texts[3] = texts[0]
    far = unit(torch.randn(4, 8), dim=-1)
    plain = contrastive_loss(scale, texts, far, texts, different)
    assert contrastive_loss(scale, texts, far, texts, equal) < plain
    assert contrastive_loss(scale, texts, texts, texts, equal) > math.log(2) / 2


@pytest.mark.slow
def test_the_detector_learns(worlds):
    train, _ = worlds
    detector = train_detector(
        train, list(CLASSES), list(COLORS), Budget(600, steps=150), batch=32, peak_lr=2e-3
    )
    few = train.images[:64]
    right = total = 0
    for found, labels in zip(detector.detect(few), train.objects.labels[:64]):
        wanted = {CLASSES[i] for i in labels.tolist() if i >= 0}
        sure = {name for name, score in zip(found.labels, found.scores) if score > 0.5}
        right, total = right + len(wanted & sure), total + len(wanted)
    assert right / total > 0.5
    assert STRIDE == 4


def test_every_stage_runs_and_what_it_writes_loads(worlds, tokenizer_folder, tmp_path):
    train, held_out = worlds
    table = train_reward_models(
        tmp_path, train, held_out, tokenizer_folder, seconds=600, steps=1, batch=16
    )
    assert set(BOUNDS) <= set(table)
    assert all(0 <= table[name] <= 1 for name in BOUNDS)
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    assert 6e6 < size < 9e6
    parts = {folder.name for folder in tmp_path.iterdir() if folder.is_dir()}
    assert parts == {"detector", "clip", "aesthetic", "pick", "clip2", "realism"}


def test_retrieval_of_a_perfect_and_of_a_blind_model():
    class Encoder:
        def __init__(self, blind):
            self.blind = blind

        def embed_texts(self, texts):
            return torch.eye(100)[[int(t) for t in texts]]

        def embed_images(self, images):
            return torch.ones(len(images), 100) if self.blind else torch.eye(100)[: len(images)]

    class Model:
        def __init__(self, blind):
            self.encoder = Encoder(blind)

    prompts = [str(i) for i in range(80)]
    images = torch.zeros(80, 3, 8, 8)
    assert retrieval(Model(False), images, prompts, 0) == 1
    assert retrieval(Model(True), images, prompts, 0) == 0  # a tie is no hit
