"""Lines that have been read are remembered, and sessions shared."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marble.rewards import load
from marble.rewards.ocr import ppocr


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
    monkeypatch.setattr(ppocr, "open_session", lambda file: Session())
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

    def open_session(file):
        opened.append(file.name)
        return Session()

    monkeypatch.setattr(ppocr, "open_session", open_session)
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    dense = load("ocr", engine="ppocr-rec", model=first, threads=2, dense=True)
    exact = load("ocr", engine="ppocr-rec", model=str(first), threads=2)
    assert exact.engine.recogniser is dense.engine.recogniser
    assert opened == ["first.onnx"]
    others = [
        load("ocr", engine="ppocr-rec", model=first, threads=1),
        load("ocr", engine="ppocr-rec", model=second, threads=2),
    ]
    assert len({id(r.engine.recogniser) for r in [dense, *others]}) == 3
    whole = load("ocr", engine="ppocr", model=first, detector=second, threads=2)
    assert whole.engine.recogniser is dense.engine.recogniser

    del dense, exact, others, whole
    load("ocr", engine="ppocr-rec", model=first, threads=2)
    assert opened[-1] == "first.onnx" and len(opened) == 5, "nobody used it: opened anew"
