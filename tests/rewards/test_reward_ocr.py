"""OCR: targets, matching, CTC likelihood, and reading rendered words."""

import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from marble.errors import MarbleError
from marble.rewards import RewardSet, load
from marble.rewards.ocr import OCR, Line, edit_distance, match_score, normalise, ppocr, quoted_text
from marble.rewards.ocr.ctc import ctc_log_likelihood
from marble.studio import world
from marble.studio.world.signs import FONTS


@pytest.mark.parametrize(
    ("prompt", "target"),
    [
        ('a sign that says "TEA"', "TEA"),
        ("a sign that says “TEA”", "TEA"),
        ("ein Schild „TEE“ am Haus", "TEE"),
        ("une enseigne « THÉ »", " THÉ "),
        ("看板「東京」", "東京"),
        (r"a sign that says \"TEA\"", "TEA"),
        (r'a page with "he said \"hi\" to me"', 'he said "hi" to me'),
        ("a page with “he said “hi” to me”", "he said “hi” to me"),
        ("a page with “he said 'hi' to me”", "he said 'hi' to me"),
        ("a sign that says 'TEA' outside", "TEA"),
        ("a sign that says ‘TEA’", "TEA"),
        ("a mug that says 'don't panic' in red", "don't panic"),
        ('a dog\'s bowl with "REX" on it', "REX"),
        ('"FIRST" and "SECOND"', "FIRST"),
        ('an empty "" and then "FULL"', "FULL"),
        ("the dog's and the cat's bowls", None),
        ("a dog", None),
        ("", None),
        ('one quote " only', None),
        ('nothing " " inside', None),
    ],
)
def test_targets(prompt, target):
    assert quoted_text(prompt) == target


def test_every_shared_style_of_studio_prompt_has_its_target():
    for prompt in world.load_split("ocr", "test") + world.load_split("ocr", "train"):
        assert quoted_text(prompt["prompt"]) == prompt["metadata"]["text"]
    for source in ("geneval", "general"):
        assert all(quoted_text(p["prompt"]) is None for p in world.load_split(source, "test"))


class Parrot:
    """An engine that always reads the same."""

    def __init__(self, text):
        self.text, self.indices_of = text, {}

    def read(self, images, *, probabilities=False):
        return [[Line(word) for word in self.text.split("\n")] for _ in images]


def test_ten_thousand_random_prompts_never_raise():
    rng = random.Random(0)
    marks = "\"'“”‘’„«»「」『』\\＂ \t\n"
    images = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    reward = OCR(Parrot("TEA"))
    for _ in range(10_000):
        length = rng.randrange(0, 24)
        prompt = "".join(
            rng.choice(marks) if rng.random() < 0.35 else chr(rng.randrange(0xD800))
            for _ in range(length)
        )
        (score,) = reward.score(images, [prompt], [{"source": "ocr"}])
        applies = reward.applies({"prompt": prompt, "source": "ocr"})
        assert applies == (not np.isnan(score))
        assert np.isnan(score) or 0 <= score <= 1


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text())
def test_any_text_has_a_score(a, b):
    assert normalise(normalise(a)) == normalise(a)
    if normalise(a):
        assert 0 <= match_score(a, b) <= 1
        assert match_score(a, f"|{a}|") == 1


def slow_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(
        slow_distance(a[1:], b) + 1,
        slow_distance(a, b[1:]) + 1,
        slow_distance(a[1:], b[1:]) + (a[0] != b[0]),
    )


@settings(max_examples=60, deadline=None)
@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edit_distance(a, b):
    assert edit_distance(a, b) == slow_distance(a, b)


@pytest.mark.parametrize(
    ("target", "read", "score"),
    [
        ("TEA", "tea", 1),
        ("TEA", "our T E A shop", 1),
        ("Grand Opening", "GRAND\nOPENING today", 1),
        ("TEA", "TEN", 2 / 3),
        ("TEA", "", 0),
        ("TEA", "completely different", 0),
        ("ＴＥＡ", "TEA", 1),
        ("straße", "STRASSE", 1),
    ],
)
def test_matching(target, read, score):
    assert match_score(target, read) == pytest.approx(score)


# CTC


def by_enumeration(emission, blank):
    """Sum over every path of symbols that collapses to 1, 2, …, L (0 is the blank)."""
    steps, length = emission.shape
    # Equal columns are one symbol.
    symbol = [
        next(j for j in range(i + 1) if (emission[:, j] == emission[:, i]).all())
        for i in range(length)
    ]
    distinct = sorted(set(symbol))
    total = 0.0
    for path in itertools.product([-1, *distinct], repeat=steps):
        collapsed = [s for s, _ in itertools.groupby(path) if s != -1]
        if collapsed == symbol:
            factors = [blank[t] if s == -1 else emission[t, s] for t, s in enumerate(path)]
            total += np.prod(factors)
    return np.log(total) if total else -np.inf


def test_ctc_equals_enumeration():
    rng = np.random.default_rng(0)
    emissions, blanks = [], []
    for steps, pattern in [
        (1, "a"),
        (4, "ab"),
        (5, "aab"),
        (5, "aba"),
        (3, "aa"),
        (2, "abc"),
        (6, "abb"),
    ]:
        probabilities = rng.dirichlet(np.ones(5), size=steps)
        emissions.append(probabilities[:, [1 + "abc".index(c) for c in pattern]])
        blanks.append(probabilities[:, 0])
    got = ctc_log_likelihood(emissions, blanks)
    expected = np.array([by_enumeration(e, b) for e, b in zip(emissions, blanks)])
    impossible = np.isinf(expected)
    np.testing.assert_allclose(got[~impossible], expected[~impossible], rtol=1e-9)
    assert impossible.sum() == 1 and (got[impossible] == -np.inf).all()  # three letters, two steps


def test_ctc_equals_torch():
    rng = np.random.default_rng(1)
    log_p = torch.from_numpy(rng.normal(size=(12, 1, 7))).log_softmax(-1)
    target = torch.tensor([[3, 3, 1, 5]])
    loss = torch.nn.functional.ctc_loss(
        log_p, target, torch.tensor([12]), torch.tensor([4]), reduction="none"
    )
    p = log_p[:, 0].exp().numpy()
    got = ctc_log_likelihood([p[:, [3, 3, 1, 5]]], [p[:, 0]])
    assert got[0] == pytest.approx(-float(loss), rel=1e-9)


# Reading


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


# Reading once


class Session:
    """Stands in for the network: a line's first red value says which letter it shows."""

    def __init__(self):
        self.lines, self.runs, self.lock = [], 0, threading.Lock()

    def get_inputs(self):
        return [SimpleNamespace(name="x")]

    def get_modelmeta(self):
        letters = "\n".join("abcdefghijklmnopqrstuvwxyz")
        return SimpleNamespace(custom_metadata_map={"character": letters})

    def run(self, _, feed):
        first = np.rint((feed["x"][:, 2, 0, 0] + 1) * 127.5).astype(int)
        with self.lock:
            self.runs += 1
            self.lines += first.tolist()
        values = np.full((len(first), 3, 28), 0.01, np.float32)
        values[:, (0, 2), 0] = 0.9
        values[np.arange(len(first)), 1, 1 + first % 26] = 0.9
        return [values]


@pytest.fixture
def recogniser(monkeypatch, tmp_path):
    monkeypatch.setattr(ppocr, "open_session", lambda file, threads: Session())
    return ppocr.Recogniser(tmp_path / "model.onnx", batch=4)


def letters(*which, width=8):
    lines = torch.zeros(len(which), 3, 48, width)
    lines[:, 0, 0, 0] = torch.tensor(which, dtype=torch.float32)
    return lines


def texts(lines):
    return "".join(line.text for line in lines)


def test_a_line_whose_probabilities_were_asked_is_not_read_again(recogniser):
    session = recogniser.session
    dense = recogniser(letters(0, 1, 2, 3, 4), probabilities=True)
    assert texts(dense) == "abcde" and session.runs == 2
    read = recogniser(letters(4, 3, 2, 1, 0), probabilities=False)
    assert texts(read) == "edcba" and session.runs == 2
    assert all(line.probabilities is None for line in read)
    again = recogniser(letters(0, 1), probabilities=True)
    assert session.runs == 3, "probabilities are not remembered"
    for line, before in zip(again, dense):
        np.testing.assert_array_equal(line.probabilities, before.probabilities)


def test_only_unknown_lines_run(recogniser):
    session = recogniser.session
    assert texts(recogniser(letters(0, 1), probabilities=False)) == "ab"
    session.lines.clear()
    assert texts(recogniser(letters(5, 0, 6, 1, 5), probabilities=False)) == "fagbf"
    assert sorted(session.lines) == [5, 6]
    assert recogniser(letters(), probabilities=False) == []
    assert recogniser(letters(), probabilities=True) == []


def test_the_shape_counts_too(recogniser):
    assert texts(recogniser(letters(0), probabilities=False)) == "a"
    turned = letters(0).reshape(1, 3, 24, 16)  # the same bytes
    assert texts(recogniser(turned, probabilities=False)) == "a"
    assert recogniser.session.lines == [0, 0]


def test_the_latest_texts_are_kept(recogniser, monkeypatch):
    monkeypatch.setattr(ppocr, "REMEMBERED", 3)
    recogniser(letters(0, 1, 2), probabilities=False)
    recogniser(letters(0), probabilities=False)  # used: 1 is now the oldest
    recogniser(letters(3), probabilities=True)
    recogniser.session.lines.clear()
    assert texts(recogniser(letters(0, 1, 2, 3), probabilities=False)) == "abcd"
    assert recogniser.session.lines == [1]
    many = list(range(20))
    assert texts(recogniser(letters(*many), probabilities=False)) == "abcdefghijklmnopqrst"
    assert len(recogniser._texts) == 3


def test_threads_may_share_a_recogniser(recogniser, monkeypatch):
    monkeypatch.setattr(ppocr, "REMEMBERED", 10)  # less than are in use: much comes and goes

    def work(seed):
        rng = random.Random(seed)
        for _ in range(60):
            which = [rng.randrange(26) for _ in range(rng.randrange(1, 9))]
            lines = recogniser(letters(*which), probabilities=rng.random() < 0.3)
            assert texts(lines) == "".join(chr(ord("a") + i) for i in which)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(recogniser._texts) <= 10


def test_engines_of_one_model_share_a_session(monkeypatch, tmp_path):
    opened = []

    def open_session(file, threads):
        opened.append((file.name, threads))
        return Session()

    monkeypatch.setattr(ppocr, "open_session", open_session)
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    dense = load("ocr", engine="ppocr-rec", model=first, threads=2, dense=True)
    exact = load("ocr", engine="ppocr-rec", model=str(first), threads=2)
    assert exact.engine.recogniser is dense.engine.recogniser
    assert opened == [("first.onnx", 2)]
    others = [
        load("ocr", engine="ppocr-rec", model=first, threads=1),
        load("ocr", engine="ppocr-rec", model=second, threads=2),
    ]
    assert len({id(r.engine.recogniser) for r in [dense, *others]}) == 3
    whole = load("ocr", engine="ppocr", model=first, detector=second, threads=2)
    assert whole.engine.recogniser is dense.engine.recogniser

    del dense, exact, others, whole
    load("ocr", engine="ppocr-rec", model=first, threads=2)
    assert opened[-1] == ("first.onnx", 2) and len(opened) == 5, "nobody used it: opened anew"


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
        OCR(Parrot("x"), dense=True)
    with pytest.raises(MarbleError, match="cannot open the OCR model"):
        load("ocr", engine="ppocr-rec", model=__file__)


def test_tesseract_says_what_it_needs():
    try:
        import tesserocr  # noqa: F401
    except ImportError:
        with pytest.raises(MarbleError, match="pip install tesserocr"):
            load("ocr", engine="tesseract")
