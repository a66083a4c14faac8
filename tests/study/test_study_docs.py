"""Pages whose numbers come from stored study tables."""

import json
from pathlib import Path

import pytest
from _study_runs import BASE, make_run, make_study, moved

from marble.errors import MarbleError
from marble.study import Cell, Study, study_table
from marble.study.docs import filled, publish

ROOT = Path(__file__).parents[2]
PAGES = ("which-method", "studies")


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_are_what_the_stored_studies_give(page):
    """`marble study … --docs docs/which-method.md` writes both; neither may be edited alone."""
    text = (ROOT / f"docs/{page}.md").read_text()
    assert "<!-- study: " in text
    assert filled(text, ROOT / "studies/results") == text


def test_blocks_are_filled_and_the_rest_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- study: mine -->\nold numbers\n<!-- end of study -->\nbetween\n"
        "<!-- study: later -->\n<!-- end of study -->\nafter\n"
    )
    gains = {"low": (0.1, 0.2), "high": (0.5, 0.6), "mid": (0.3, 0.4)}
    table = study_table(make_study(tmp_path / "runs", gains), tmp_path / "runs")
    stored, full, _ = publish(table, page, tmp_path / "results")
    text = page.read_text()
    assert "old numbers" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert "| high | 2 | 0.550 ± 0.635 |" in text and "6 of 6 runs" in text
    assert "Not measured yet: `marble study studies/later.yaml`" in text
    assert "mean share" in full.read_text()
    assert json.loads(stored.read_text())["study"] == "mine"
    assert filled(text, tmp_path / "results") == text


def test_several_settings_become_columns_with_the_best_in_bold(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- study: mine -->\n<!-- end of study -->\n")
    cells = [Cell(n, 0, (), s) for s in ("one", "two") for n in ("x", "y", "hidden")]
    gains = {
        "one-x": 0.1,
        "one-y": 0.2,
        "two-x": 0.4,
        "two-y": 0.3,
        "one-hidden": 0,
        "two-hidden": 0,
    }
    for name, gain in gains.items():
        make_run(tmp_path / f"{name}-seed0", BASE, moved(a=gain, b=2.0))
    study = Study("mine", "A study.", "studio", cells, show=("x", "y"))
    publish(study_table(study, tmp_path), page, tmp_path / "results")
    text = page.read_text()
    assert "clear of 0: `y` in *one* (0 of 1), `x` in *two* (0 of 1)." in text
    assert "| | one | two |" in text and "hidden" not in text
    assert "| x | 0.10 | **0.40** |" in text and "| y | **0.20** | 0.30 |" in text


def test_a_page_without_a_block_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("nothing here")
    table = study_table(make_study(tmp_path / "runs", {"x": (0.1,)}, seeds=(0,)), tmp_path / "runs")
    with pytest.raises(MarbleError, match="no block"):
        publish(table, tmp_path / "page.md", tmp_path / "results")
