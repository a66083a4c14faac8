"""OCR without pictures: what a prompt asks for, how texts are matched, CTC."""

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.rewards.ocr import OCR, Line, edit_distance, match_score, normalise, quoted_text
from marble.rewards.ocr.ctc import ctc_log_likelihood
from marble.studio import world


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
