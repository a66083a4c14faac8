"""Prompts: the shipped files, the splits, the token budget, GenEval's format."""

import json
from collections import Counter
from importlib.resources import files

import numpy as np
import pytest

from marble.errors import MarbleError
from marble.studio.world import (
    LETTERS,
    SOURCES,
    load_split,
    parse,
    random_prompt,
    tokens,
    vocabulary,
)
from marble.studio.world.grammar import facts
from marble.studio.world.heldout import any_held_out
from marble.studio.world.language import CLASSES, COLORABLE, PHRASE_TOKENS
from marble.studio.world.prompts import TAGS, file_of, file_text
from marble.studio.world.words import HELD_OUT_WORDS, TRAIN_WORDS, WORDS, made_up_word

FILES = [(source, split) for source in SOURCES for split in ("train", "test")]
LENGTHS = {
    ("geneval", "train"): 1200,
    ("geneval", "test"): 240,
    ("ocr", "train"): 300,
    ("ocr", "test"): 96,
    ("general", "train"): 600,
    ("general", "test"): 96,
}


@pytest.mark.parametrize(("source", "split"), FILES)
def test_files_are_what_the_generator_writes(source: str, split: str) -> None:
    shipped = (files("marble.studio") / "prompts" / file_of(source, split)).read_text()
    assert shipped == file_text(source, split)
    prompts = load_split(source, split)
    assert len(prompts) == LENGTHS[source, split]
    assert len({p["prompt"] for p in prompts}) == len(prompts)
    assert all(p["source"] == p["metadata"]["source"] == source for p in prompts)


@pytest.mark.parametrize("source", SOURCES)
def test_splits_are_disjoint_in_facts(source: str) -> None:
    train, test = load_split(source, "train"), load_split(source, "test")
    assert not {p["prompt"] for p in train} & {p["prompt"] for p in test}
    seen = {fact for p in train for fact in facts(p)}
    for prompt in test:
        assert any(fact not in seen for fact in facts(prompt)), prompt["prompt"]


@pytest.mark.parametrize("source", SOURCES)
def test_pretraining_never_meets_a_held_out_fact(source: str) -> None:
    rng = np.random.default_rng(3)
    test = load_split(source, "test")
    held_out = {f for p in test for f in facts(p) if any_held_out([f])}
    assert len(held_out) > len(test) / 2, "the test file leans on a few facts"
    for _ in range(2000):
        assert not held_out & set(facts(random_prompt(source, rng)))


def test_every_token_is_known_and_prompts_are_short() -> None:
    known = set(vocabulary()) | set(LETTERS)
    rng = np.random.default_rng(0)
    texts = [p["prompt"] for source, split in FILES for p in load_split(source, split)]
    texts += [random_prompt(s, rng, split)["prompt"] for s, split in FILES for _ in range(500)]
    for text in texts:
        assert len(tokens(text)) <= PHRASE_TOKENS, text
        assert set(tokens(text)) <= known, text
    used = {token for text in texts for token in tokens(text)}
    assert known <= used, "the vocabulary lists a word that no prompt uses"


def test_tokens_spell_capitals_only() -> None:
    assert tokens('a sign that says "TEA"') == ["a", "sign", "that", "says", '"', *"TEA", '"']


def test_geneval_lines_have_genevals_format() -> None:
    tags = Counter()
    for split in ("train", "test"):
        for prompt in load_split("geneval", split):
            line = {k: v for k, v in prompt["metadata"].items() if k != "source"}
            tags[line["tag"]] += 1
            assert set(line) - {"exclude"} == {"tag", "include", "prompt"}
            include = line["include"]
            assert all(e["class"] in CLASSES for e in include)
            assert all(e["class"] in COLORABLE for e in include if "color" in e)
            if line["tag"] == "counting":
                (only,) = include
                assert line["exclude"] == [{"class": only["class"], "count": only["count"] + 1}]
            else:
                assert "exclude" not in line
            if line["tag"] == "position":
                first, second = include
                relation, target = second["position"]
                assert "position" not in first and target == 0
                # the object with the relation is the one named first
                assert line["prompt"].index(second["class"]) < line["prompt"].index(relation)
    assert set(tags) == set(TAGS)


def test_text_files_keep_their_structure_when_read_back() -> None:
    rng = np.random.default_rng(1)
    for source in ("ocr", "general"):
        for _ in range(500):
            prompt = random_prompt(source, rng)
            assert parse(prompt["prompt"], source) == json.loads(json.dumps(prompt))


@pytest.mark.parametrize(
    "text", ["", "a dog", "a purple dragon at night", 'a sign that says "tea"']
)
def test_a_prompt_that_is_not_of_the_world_is_refused(text: str) -> None:
    for source in ("ocr", "general"):
        with pytest.raises(MarbleError, match="not a prompt"):
            parse(text, source)


def test_unknown_source_or_split_is_refused() -> None:
    with pytest.raises(MarbleError, match="geneval, ocr, general"):
        load_split("poems", "train")
    with pytest.raises(MarbleError, match="geneval, ocr, general"):
        random_prompt("ocr", np.random.default_rng(0), "validation")


def test_words() -> None:
    assert len(WORDS) >= 400 and len(HELD_OUT_WORDS) >= 80
    assert not set(TRAIN_WORDS) & set(HELD_OUT_WORDS)
    rng = np.random.default_rng(0)
    made = [made_up_word(rng) for _ in range(3000)]
    for word in (*WORDS, *made):
        assert 3 <= len(word) <= 6 and set(word) <= set(LETTERS)
    assert not set(made) & set(HELD_OUT_WORDS)
    assert {len(word) for word in made} == {3, 4, 5, 6}
    assert set("".join(made)) == set(LETTERS)
