"""The readability check finds what it should, and the pages that have been gone over pass it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from readability import findings, sentences  # noqa: E402

PLAIN = ("CONTRIBUTING.md", "SECURITY.md", "docs/diagnose.md", "docs/index.md", "docs/glossary.md")
PLAIN += ("docs/integrations.md", "docs/survive.md", "docs/training.md", "docs/report.md")


def test_long_sentences_and_words_of_ours_are_found():
    long = "This sentence goes on " + "and on " * 20 + "until somebody stops it."
    text = (
        f"# A twin in a heading\n\nShort. {long}\n\n| a twin | in a table |\n\n```\na twin\n```\n"
    )
    assert [(line, what[:8]) for line, what in findings(text)] == [(3, "48 words")]
    told = [
        what for _, what in findings("It does not know a picture's twin.\n\n- 3 seconds a step")
    ]
    assert told == ["“twin”: write paired base samples", "“seconds a step”: write per"]
    assert findings("The field `balance.progress.paired` keeps its name.") == []


def test_sentences_end_where_people_end_them():
    assert len(sentences("One. Two; Three: `a. b` and 1.5 more. (Four.)")) == 5


@pytest.mark.parametrize("page", PLAIN)
def test_pages_that_were_gone_over_stay_plain(page):
    assert findings((ROOT / page).read_text(encoding="utf-8")) == []
