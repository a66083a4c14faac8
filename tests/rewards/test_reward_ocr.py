"""OCR of pictures: words, signs, bad pictures, engines."""

import itertools
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from marble.errors import MarbleError
from marble.rewards import RewardSet, load
from marble.rewards.ocr import OCR
from marble.studio import world
from marble.studio.world.signs import FONTS


def picture_of(word, side, font, ink, paper, width=0.8):
    image = Image.new("RGB", (side, side), paper)
    draw = ImageDraw.Draw(image)
    sizes = [font.font_variant(size=size) for size in range(8, side // 3, 4)]
    largest = [f for f in sizes if draw.textlength(word, f) < width * side][-1]
    draw.text((side / 2, side / 2), word, font=largest, fill=ink, anchor="mm")
    return np.asarray(image)


def fonts():
    import matplotlib.font_manager as manager

    names = ("DejaVu Sans", "DejaVu Serif", "STIXGeneral")
    return [ImageFont.truetype(manager.findfont(name), 40) for name in names]


@pytest.fixture(scope="module")
def words_256():
    rng = random.Random(4)
    pairs = [("black", "white"), ("white", "navy"), ("#aa2200", "#ffeecc"), ("#fff5a0", "#336633")]
    words = ["Garden", "COFFEE", "harvest", "Lighthouse", "OPEN", "music", "Bakery", "River"]
    words += ["Station", "MARKET", "pepper", "Window", "BRIDGE", "castle", "Autumn", "EXIT"]
    words += ["Library", "SALE", "orange", "Kitchen", "THEATRE", "forest", "Sunday", "HOTEL"]
    faces = fonts()
    pictures = [
        picture_of(word, 256, faces[i % 3], *pairs[i % 4], width=rng.choice([0.35, 0.55, 0.8]))
        for i, word in enumerate(words)
    ]
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    return words, images


def test_ppocr_reads_clean_words_at_256_px(words_256):
    words, images = words_256
    prompts = [f'a poster with the word "{word}"' for word in words]
    reward = load("ocr")
    began = time.perf_counter()
    scores = RewardSet([reward]).score(images, prompts, [{"source": "ocr"}] * len(words))
    print(f"\nppocr: {len(words) / (time.perf_counter() - began):.1f} pictures/s at 256 px")
    assert (scores == 1).mean() >= 0.95, list(zip(words, reward.read(images)))
    wrong = RewardSet([reward]).score(images, prompts[::-1], [{"source": "ocr"}] * len(words))
    assert wrong.mean() < 0.5


def test_ppocr_reads_two_lines_and_a_slant():
    font = fonts()[0]
    image = Image.new("RGB", (256, 256), "white")
    draw = ImageDraw.Draw(image)
    draw.text((128, 80), "GRAND", font=font, fill="black", anchor="mm")
    draw.text((128, 160), "OPENING", font=font, fill="black", anchor="mm")
    slanted = image.rotate(12, fillcolor="white")
    images = torch.from_numpy(np.stack([np.asarray(i) for i in (image, slanted)])).permute(
        0, 3, 1, 2
    )
    prompts = ['a banner: "Grand Opening"'] * 2
    meta = [{"source": "ocr"}] * 2
    assert load("ocr").score(images, prompts, meta).tolist() == [1, 1]
    assert (load("ocr", dense=True).score(images, prompts, meta) > 0.9).all()


def test_an_empty_picture_reads_as_nothing():
    images = torch.full((2, 3, 128, 128), 200, dtype=torch.uint8)
    for dense in (False, True):
        scores = load("ocr", dense=dense).score(
            images, ['"TEA"', "no text"], [{"source": "ocr"}] * 2
        )
        assert scores[0] == 0 and np.isnan(scores[1])


@pytest.fixture(scope="module")
def signs():
    data = world.generate(48, seed=77, sources={"ocr": 1.0}, split="test")
    images = torch.from_numpy(data["images"]).permute(0, 3, 1, 2).contiguous()
    return images, data["prompts"], data["metadata"]


@pytest.fixture(scope="module")
def line_reader():
    return load("ocr", engine="ppocr-rec"), load("ocr", engine="ppocr-rec", dense=True)


def test_the_studios_signs_are_read(signs, line_reader):
    images, prompts, metadata = signs
    assert len(FONTS) >= 3
    exact, dense = (reward.score(images, prompts, metadata) for reward in line_reader)
    assert exact.mean() >= 0.98
    assert dense.min() > 0.9


def test_dense_tells_bad_pictures_apart(line_reader):
    """Where the edit score is 0 for right and wrong words alike, the likelihood still knows."""
    exact, dense = line_reader
    data = world.generate(64, seed=77, sources={"ocr": 1.0}, split="test")
    images = torch.from_numpy(data["images"]).permute(0, 3, 1, 2).float()
    prompts, metadata = data["prompts"], data["metadata"]
    others = prompts[7:] + prompts[:7]
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0)) * 255
    means = []
    for keep in (1.0, 0.5, 0.35, 0.25):
        spoiled = (keep * images + (1 - keep) * noise).to(torch.uint8)
        right = dense.score(spoiled, prompts, metadata)
        means.append(right.mean())
        if keep == 0.35:
            wrong = dense.score(spoiled, others, metadata)
            unread = exact.score(spoiled, prompts, metadata) == 0
            assert unread.sum() >= 8
            assert (right > wrong)[unread].mean() > 0.75
            assert (right > wrong).mean() > 0.95
    assert all(a > b + 0.02 for a, b in itertools.pairwise(means)), means


def test_reading_does_not_depend_on_the_batch(words_256):
    words, images = words_256
    reward = load("ocr", dense=True)
    prompts = [f'"{word}"' for word in words]
    together = reward.score(images, prompts, [{}] * len(words))
    alone = [reward.score(images[i : i + 1], prompts[i : i + 1], [{}])[0] for i in range(4)]
    np.testing.assert_allclose(together[:4], alone, atol=1e-3)


def test_dense_and_exact_of_a_batch_cost_one_reading(signs, line_reader, monkeypatch):
    images, prompts, metadata = signs
    exact, dense = line_reader
    recogniser = exact.engine.recogniser
    assert recogniser is dense.engine.recogniser
    recogniser._texts.clear()
    expected = exact.score(images, prompts, metadata)
    recogniser._texts.clear()
    dense.score(images, prompts, metadata)
    monkeypatch.setattr(recogniser, "session", None)  # it is not asked again
    np.testing.assert_array_equal(exact.score(images, prompts, metadata), expected)


def test_a_character_the_engine_does_not_know_scores_zero(signs, line_reader):
    images, _, _ = signs
    _, dense = line_reader
    assert dense.score(images[:1], ['"\U00013000\U00013001"'], [{}])[0] == 0


def test_engines_by_name():
    with pytest.raises(MarbleError, match="ppocr, ppocr-rec or tesseract"):
        load("ocr", engine="guess")
    with pytest.raises(MarbleError, match="dense needs ppocr"):
        OCR(SimpleNamespace(indices_of={}), dense=True)
    with pytest.raises(MarbleError, match="cannot open the OCR model"):
        load("ocr", engine="ppocr-rec", model=__file__)


def test_tesseract_says_what_it_needs():
    try:
        import tesserocr  # noqa: F401
    except ImportError:
        with pytest.raises(MarbleError, match="pip install tesserocr"):
            load("ocr", engine="tesseract")


def test_torch_runs_the_recogniser_as_onnxruntime_does(words_256, monkeypatch):
    """The path taken on a GPU, run on the CPU: probabilities, texts and dense scores agree."""
    from marble.rewards.ocr import ppocr

    generator = torch.Generator().manual_seed(3)
    words, images = words_256[0][:4], words_256[1][:4]
    noise = torch.randint(0, 256, images.shape, generator=generator).byte()
    images = torch.cat([images, noise])
    prompts = [f'a sign that says "{word}"' for word in [*words, *words]]
    by_onnx = OCR("ppocr-rec", dense=True)
    monkeypatch.setattr(ppocr, "_by_torch", lambda device: True)
    monkeypatch.setattr(ppocr, "_shared", {})
    by_torch = OCR("ppocr-rec", dense=True)
    assert by_torch.engine.recogniser.session is None
    ours = by_torch.engine.read(images, probabilities=True)
    theirs = by_onnx.engine.read(images, probabilities=True)
    for (a,), (b,) in zip(ours, theirs):
        assert a.text == b.text
        np.testing.assert_allclose(a.probabilities.numpy(), b.probabilities, atol=2e-4)
    metadata = [{} for _ in prompts]
    np.testing.assert_allclose(
        by_torch.score(images, prompts, metadata),
        by_onnx.score(images, prompts, metadata),
        atol=1e-3,
    )
    plain = OCR("ppocr-rec")
    assert plain.engine.recogniser.session is None
    assert plain.read(images) == [line.text for (line,) in theirs]


def test_an_unknown_operation_is_refused_by_name(monkeypatch):
    from marble.rewards.ocr import onnx_torch, ppocr

    monkeypatch.delitem(onnx_torch.OPERATIONS, "HardSigmoid")
    with pytest.raises(MarbleError, match="HardSigmoid"):
        onnx_torch.TorchGraph(ppocr.model_file("*rec*.onnx"), "cpu")


def test_a_file_that_is_no_model_is_one_line(tmp_path):
    from marble.rewards.ocr.onnx_file import read_onnx

    (tmp_path / "x.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(MarbleError, match="cannot read the ONNX model"):
        read_onnx(tmp_path / "x.onnx")
