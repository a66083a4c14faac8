"""The GenEval reward on rendered scenes, with detectors of known boxes and with real networks."""

import numpy as np
import pytest
import torch
from _tiny_clip import new_tiny_clip
from transformers import Mask2FormerForUniversalSegmentation

from marble.errors import MarbleError
from marble.rewards import RewardSet, load
from marble.rewards.geneval import Detections, GenEval
from marble.rewards.geneval.centernet import STRIDE, CenterNet, CenterNetDetector, DetectorConfig
from marble.rewards.geneval.colors import GREY, ClipColors, crop_object
from marble.rewards.geneval.mask2former import Frame, Mask2FormerDetector, instances, preprocess
from marble.studio.world import CLASSES, COLORS, break_scene, compose, random_prompt, render
from marble.studio.world.prompts import load_split


class KnownBoxes:
    """A fake detector: it knows the scenes that were drawn."""

    classes = CLASSES

    def __init__(self, scenes):
        self.scenes = scenes

    def detect(self, images):
        assert len(images) == len(self.scenes)
        return [
            Detections(
                boxes=np.array([t.box for t in scene.things], float).reshape(-1, 4),
                labels=[t.name for t in scene.things],
                scores=np.full(len(scene.things), 0.99),
                colors=[t.color or "natural" for t in scene.things],
            )
            for scene in self.scenes
        ]

    def to(self, device):
        return self


def drawn(n, broken):
    rng = np.random.default_rng(5)
    prompts = [random_prompt("geneval", rng, "test") for _ in range(n)]
    scenes = [compose(p, rng) for p in prompts]
    if broken:
        scenes = [break_scene(s, p, rng) for s, p in zip(scenes, prompts)]
    images = torch.from_numpy(np.stack([render(s) for s in scenes])).permute(0, 3, 1, 2)
    return images, [p["prompt"] for p in prompts], [p["metadata"] for p in prompts], scenes


@pytest.mark.parametrize("mode", ["strict", "partial"])
def test_scenes_as_drawn_are_right_and_with_one_error_wrong(mode):
    images, prompts, metadata, scenes = drawn(150, broken=False)
    right = GenEval(KnownBoxes(scenes), mode=mode).score(images, prompts, metadata)
    assert (right == 1).all()
    images, prompts, metadata, scenes = drawn(150, broken=True)
    wrong = GenEval(KnownBoxes(scenes), mode=mode).score(images, prompts, metadata)
    assert (wrong < 1).all() and (wrong >= 0).all()
    if mode == "partial":
        assert 0.2 < wrong.mean() < 0.8


def test_it_applies_to_genevals_metadata_only():
    reward = GenEval(KnownBoxes([]))
    assert all(reward.applies(p["metadata"]) for p in load_split("geneval", "test"))
    assert not any(reward.applies(p["metadata"]) for p in load_split("general", "test"))
    assert not any(reward.applies(p["metadata"]) for p in load_split("ocr", "test"))


def test_a_colour_without_a_classifier_is_an_error_not_a_zero():
    class Colourless(KnownBoxes):
        def detect(self, images):
            found = super().detect(images)
            for one in found:
                one.colors = None
            return found

    rng = np.random.default_rng(0)
    prompt = next(p for p in load_split("geneval", "test") if p["metadata"]["tag"] == "colors")
    scene = compose(prompt, rng)
    images = torch.from_numpy(render(scene)).permute(2, 0, 1)[None]
    reward = GenEval(Colourless([scene]))
    with pytest.raises(MarbleError, match="colour classifier"):
        RewardSet([reward]).score(images, [prompt["prompt"]], [prompt["metadata"]])


def test_unknown_modes_and_detectors():
    with pytest.raises(MarbleError, match="strict or partial"):
        GenEval(KnownBoxes([]), mode="lenient")
    with pytest.raises(MarbleError, match="mask2former or centernet"):
        GenEval("yolo")
    with pytest.raises(MarbleError, match="needs `path:`"):
        GenEval("centernet")


# The studio's detector


def tiny_detector():
    torch.manual_seed(0)
    return CenterNetDetector(CenterNet(DetectorConfig(list(CLASSES), list(COLORS), width=8)))


def test_decoding_finds_the_peaks_of_the_maps():
    detector = tiny_detector()
    heat = torch.full((1, len(CLASSES), 16, 16), -9.0)
    box = torch.zeros(1, 4, 16, 16)
    color = torch.zeros(1, len(COLORS), 16, 16)
    heat[0, 3, 4, 5] = 6.0  # class 3 at row 4, column 5
    heat[0, 3, 4, 6] = 5.0  # its shoulder
    heat[0, 7, 4, 5] = 5.5  # another class claiming the same place
    heat[0, 1, 12, 10] = 3.0
    box[0, :, 4, 5] = torch.tensor([np.log(5.0), np.log(3.0), 0.5, 0.25])
    color[0, 2, 4, 5] = 4.0
    (found,) = detector.decode(heat, box, color)
    assert found.labels == [CLASSES[3], CLASSES[1]]
    assert found.colors[0] == COLORS[2]
    centre = np.array([(5 + 0.5) * STRIDE, (4 + 0.25) * STRIDE])
    size = np.array([5.0, 3.0]) * STRIDE
    np.testing.assert_allclose(found.boxes[0], [*(centre - size / 2), *(centre + size / 2)])
    np.testing.assert_allclose(found.scores, torch.sigmoid(torch.tensor([6.0, 3.0])).numpy())


def test_detector_folder_round_trip(tmp_path):
    detector = tiny_detector()
    detector.config.slope, detector.config.offset = 2.0, -0.5
    detector.save(tmp_path)
    again = CenterNetDetector.load(tmp_path)
    assert again.config == detector.config
    images = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    maps = [d.model(images.float() / 127.5 - 1) for d in (detector, again)]
    for a, b in zip(*maps):
        torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)  # kept in fp16
    reward = load("geneval", detector="centernet", path=tmp_path, mode="partial")
    meta = {"source": "geneval", "tag": "single_object", "include": [{"class": "dog", "count": 1}]}
    scores = RewardSet([reward]).score(images, ["a photo of a dog"] * 3, [meta] * 3)
    assert ((scores >= 0) & (scores <= 1)).all()


def test_detector_reads_any_batch_the_same(tmp_path):
    detector = tiny_detector()
    detector.floor = 0.0
    images = torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8)
    together = detector.detect(images)
    detector.batch_size = 2
    for a, b in zip(together, detector.detect(images)):
        np.testing.assert_allclose(a.boxes, b.boxes, atol=1e-3)


def test_damaged_detector_files_are_one_clear_error(tmp_path):
    tiny_detector().save(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MarbleError, match="cannot load the detector"):
        CenterNetDetector.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"width": 8', '"width": 9'))
    with pytest.raises(MarbleError, match="does not fit"):
        CenterNetDetector.load(tmp_path)
    with pytest.raises(MarbleError, match="cannot load the detector"):
        CenterNetDetector.load(tmp_path / "nowhere")


def test_odd_sizes_are_refused():
    with pytest.raises(MarbleError, match="multiples of 8"):
        tiny_detector().detect(torch.zeros(1, 3, 60, 64, dtype=torch.uint8))


# Mask2Former and CLIP's colours


def test_instances_are_scored_by_class_and_mask():
    logits = torch.full((3, 81), -10.0)
    logits[0, 16], logits[1, 0], logits[2, 80] = 10.0, 10.0, 10.0  # a dog, a person, nothing
    masks = torch.full((3, 8, 8), -20.0)
    masks[0, 2:4, 1:5] = 20.0
    masks[1, 5:8, 5:8] = 1.0
    found = instances(logits, masks, Frame((8, 8), (8, 8), (8, 8)))
    order = np.argsort(found.labels)
    assert [found.labels[i] for i in order] == ["dog", "person"]
    dog, person = order
    np.testing.assert_array_equal(found.boxes[dog], [1, 2, 5, 4])
    assert found.scores[dog] == pytest.approx(1, abs=1e-3)
    assert found.scores[person] == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=1e-3)
    assert found.masks.sum() == 8 + 9


def test_no_confident_query_means_no_detections():
    found = instances(torch.zeros(3, 81), torch.zeros(3, 8, 8), Frame.of(8, 8))
    assert len(found) == 0 and found.boxes.shape == (0, 4)


def test_mask2former_preprocessing_keeps_the_shape_and_pads():
    square = Frame.of(512, 512)
    assert square.resized == square.padded == (800, 800)
    wide = Frame.of(300, 900)
    assert wide.resized == (444, 1333) and wide.padded == (448, 1344)
    tall = Frame.of(640, 480)
    assert tall.resized == (1067, 800) and tall.padded == (1088, 800)
    pixels = preprocess(torch.full((1, 3, 300, 900), 255, dtype=torch.uint8), wide)
    assert pixels.shape == (1, 3, 448, 1344)
    white = (1 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(pixels[0, :, 443, 1332], white)
    assert (pixels[..., 444:, :] == 0).all() and (pixels[..., 1333:] == 0).all()


def test_masks_come_back_to_the_picture_without_the_padding():
    """A ramp along x: its value at a pixel says which place of the input that pixel came from."""
    frame = Frame((30, 90), (444, 1333), (448, 1344))
    ramp = (torch.arange(336).float() + 0.5).expand(1, 112, 336) * 4  # x of the padded input
    back = frame.restore(ramp)
    assert back.shape == (1, 30, 90)
    expected = (torch.arange(90) + 0.5) * 1333 / 90
    torch.testing.assert_close(back[0, 15, 1:-1], expected[1:-1], atol=0.5, rtol=0)


def test_mask2former_runs_as_the_real_checkpoint_would(tiny_mask2former, tmp_path):
    clip = new_tiny_clip(tmp_path / "clip")
    reward = load(
        "geneval", path=tiny_mask2former, clip=clip, mode="partial", short_side=64, batch_size=2
    )
    assert isinstance(reward.detector, Mask2FormerDetector)
    images = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)
    metas = [p["metadata"] for p in load_split("geneval", "test")[:3]]
    scores = RewardSet([reward]).score(images, ["x"] * 3, metas)
    assert scores.shape == (1, 3) and ((scores >= 0) & (scores <= 1)).all()


def test_graded_and_strict_share_one_detector(tiny_mask2former, tmp_path):
    options = {"path": tiny_mask2former, "clip": new_tiny_clip(tmp_path / "clip")}
    graded, strict = (load("geneval", mode=m, **options) for m in ("partial", "strict"))
    assert graded.detector is strict.detector and graded.colors.encoder is strict.colors.encoder
    assert load("geneval", batch_size=2, **options).detector is not strict.detector
    with pytest.raises(MarbleError, match="short_side"):
        load("geneval", short_sid=64, **options)


def test_a_detector_without_cocos_classes_is_refused(tiny_mask2former, tmp_path):
    model = Mask2FormerForUniversalSegmentation.from_pretrained(
        tiny_mask2former, num_labels=3, ignore_mismatched_sizes=True
    )
    model.save_pretrained(tmp_path)
    with pytest.raises(MarbleError, match="80"):
        Mask2FormerDetector(tmp_path)


def test_crops_grey_out_what_is_not_the_object():
    image = torch.arange(3 * 8 * 8, dtype=torch.uint8).reshape(3, 8, 8)
    masks = np.zeros((1, 8, 8), bool)
    masks[0, 2:4, 3:6] = True
    found = Detections(np.array([[2, 1, 7, 5]]), ["dog"], np.array([0.9]), masks)
    crop = crop_object(image, found, 0)
    assert crop.shape == (3, 4, 5)
    assert (crop[:, 0] == GREY).all()
    torch.testing.assert_close(crop[:, 1:3, 1:4], image[:, 2:4, 3:6])


def test_colours_follow_clips_zero_shot_rule(tmp_path):
    folder = new_tiny_clip(tmp_path / "clip", seed=4)
    colors = ClipColors(folder, colors=("red", "green"))
    image = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8)
    found = Detections(np.array([[4, 4, 30, 36], [0, 0, 9, 9]]), ["dog"] * 2, np.ones(2))
    encoder = colors.encoder
    for index in (0, 1):
        crop = crop_object(image, found, index)[None]
        seen = encoder.embed_images(crop)[0]
        best = []
        for color in ("red", "green"):
            texts = [
                f"a photo of a {color} dog",
                f"a photo of a {color}-colored dog",
                f"a photo of a {color} object",
            ]
            mean = encoder.embed_texts(texts).mean(0)
            best.append(float(seen @ (mean / mean.norm())))
        expected = ("red", "green")[int(np.argmax(best))]
        assert colors.classify(image, found, [index], "dog") == [expected]
    assert colors.classify(image, found, [], "dog") == []
