"""Prompts made from templates: the public formats, none of the public test prompts."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from _command import marble  # noqa: F401
from marble.data import load_prompts
from marble.prompts import geneval, ocr, write_prompts
from marble.rewards.geneval.coco import COCO_CLASSES
from marble.rewards.ocr.text import quoted_text

SHARED = Path(__file__).parents[2].parent / "shared" / "prompts"
TAGS = {
    "single_object": 80,
    "two_object": 99,
    "counting": 80,
    "colors": 94,
    "position": 100,
    "color_attr": 100,
}


def test_genevals_test_set_is_the_public_one():
    lines = geneval.test_lines()
    assert len(lines) == len({line["prompt"] for line in lines}) == 553
    assert Counter(line["tag"] for line in lines) == TAGS
    public = SHARED / "geneval" / "test_metadata.jsonl"
    if public.exists():
        rows = {r["prompt"]: r for r in map(json.loads, public.read_text().splitlines())}
        assert {line["prompt"]: line for line in lines} == rows


def test_training_prompts_have_six_tags_and_none_of_the_test_prompts():
    lines = geneval.make(3000, random.Random(0))
    prompts = {line["prompt"] for line in lines}
    assert len(prompts) == 3000
    assert not prompts & {line["prompt"] for line in geneval.test_lines()}
    assert set(Counter(line["tag"] for line in lines)) == set(TAGS)
    for line in lines:
        assert all(part["class"] in COCO_CLASSES for part in line["include"])
        if line["prompt"].startswith("a photo of"):  # the words mean what the metadata say
            assert geneval.parse(line["prompt"]) == line
        if line["tag"] == "counting":
            assert line["exclude"][0]["count"] == line["include"][0]["count"] + 1


def test_ocr_texts_are_of_many_lengths_and_styles():
    prompts = ocr.make(2000, random.Random(0))
    texts = [ocr.text_of(p) for p in prompts]
    assert len({t.lower() for t in texts}) == 2000
    for prompt, text in zip(prompts, texts, strict=True):
        assert prompt.count('"') == 2 and quoted_text(prompt) == text
    lengths = Counter(len(t.split()) for t in texts)
    assert set(range(1, 8)) <= set(lengths) and max(lengths) <= 9
    assert 0.1 < sum(t.isupper() for t in texts) / 2000 < 0.35
    assert 0.1 < sum(t.islower() for t in texts) / 2000 < 0.35
    assert sum(bool(re.search(r"\d", t)) for t in texts) > 400
    public = SHARED / "ocr" / "test.txt"
    if public.exists():
        assert not set(prompts) & set(public.read_text().splitlines())


@pytest.mark.parametrize("kind", ["geneval", "ocr"])
def test_folders_load_and_repeat(tmp_path, kind):
    for name in ("a", "b"):
        write_prompts(kind, tmp_path / name, count=50, seed=3)
    write_prompts(kind, tmp_path / "c", count=50, seed=4)
    train = [load_prompts(str(tmp_path / name), "train", source=kind) for name in "abc"]
    test = [load_prompts(str(tmp_path / name), "test", source=kind) for name in "abc"]
    assert train[0] == train[1] != train[2] and len(train[0]) == 50
    assert test[0] == test[2]
    assert not {p.text for p in train[0]} & {p.text for p in test[0]}
    assert len(test[0]) == (2212 if kind == "geneval" else 200)


def test_the_command(marble, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    result = marble("prompts", "ocr", "-n", "20")
    assert result.status == 0 and "    20 prompts  data/ocr/train.txt" in result.out
    again = marble("prompts", "ocr", "-n", "20")
    assert again.status == 2 and "--force" in again.err
    assert marble("prompts", "ocr", "-n", "5", "--force").status == 0
    record = json.loads(marble("prompts", "geneval", "-n", "7", "--json").out)
    assert record["train"] == 7 and Path(record["files"][0]).is_file()
    other = marble("prompts", "pickscore")
    assert other.status == 2 and "dataset/pickscore" in other.err
    doctor = marble("doctor", "sd35m-5rewards", "data.sources.ocr.path=elsewhere")
    assert "marble prompts ocr --out elsewhere" in doctor.out
    assert "5 train, 200 test in data/ocr" in marble("doctor", "sd35m-5rewards").out
