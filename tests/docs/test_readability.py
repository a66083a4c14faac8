"""The readability check finds what it should, and pages and docstrings pass it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from readability import (  # noqa: E402
    WORDS,
    docstrings,
    findings,
    findings_in_code,
    modules,
    pages,
    sentences,
    terms,
)


def test_long_sentences_are_found():
    long = "This sentence goes on " + "and on " * 20 + "until somebody stops it."
    text = f"# A heading\n\nShort. {long}\n\n| {long} |\n\n```text\n{long}\n```\n"
    assert [(line, what[:8]) for line, what in findings(text)] == [(3, "48 words")]


def test_words_of_ours_are_found_in_tables_and_headings_too():
    text = "# A twin\n\nIt has two votes.\n\n| canaries |\n\n- 3 seconds a step\n"
    text += "\n```text\na twin\n```\n"
    assert findings(text) == [
        (1, "“twin”: write paired base samples"),
        (3, "“votes”: write redundancy weight"),
        (5, "“canaries”: write drift statistics"),
        (7, "“seconds a step”: write per"),
    ]
    assert terms("The field `balance.progress.twins` is gone; so is [it](twins.md).") == []


def test_misspelt_words_are_found():
    text = "The pictuers of a rollout.\n\n`pictuers`, PicTuers, [x](pictuers.md), optimiser\n"
    assert findings(text) == [(1, "“pictuers”: misspelt?")]


def test_docstrings_are_read_and_code_is_not():
    source = (
        '"""A module."""\ntwins = "a twin"\n\n\ndef f():\n    """One.\n\n    A twin.\n    """\n'
    )
    assert [line for line, _ in docstrings(source)] == [1, 6]
    assert findings_in_code(source) == [(8, "“twin”: write paired base samples")]


def test_sentences_end_where_people_end_them():
    assert len(sentences("One. Two; Three: `a. b` and 1.5 more. (Four.)")) == 5


def test_the_word_list_is_sorted_and_holds_nothing_twice():
    listed = WORDS.read_text().split()
    assert listed == sorted(set(listed))


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_are_plain(page):
    assert findings(page.read_text(encoding="utf-8")) == []


def test_docstrings_have_no_words_of_ours():
    found = {p.name: findings_in_code(p.read_text(encoding="utf-8")) for p in modules()}
    assert {name: what for name, what in found.items() if what} == {}
