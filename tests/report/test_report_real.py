"""Pages of runs that were really trained: four methods on the studio model, a few steps each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _acts import (
    assert_accessible,
    assert_drawn,
    assert_not_empty_to_the_eye,
    use_filter_and_sort,
    use_sliders,
    use_theme,
)

from marble.report import write

METHODS = ("marble", "uniform", "weighted_sum", "progress")


def train(out: Path, *words: str) -> Path:
    """One real run of the command line, on one core."""
    command = [sys.executable, "-m", "marble", "train", *words, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--device", "cpu"], env=environment, check=True, timeout=1800)
    return out


@pytest.fixture(scope="module")
def real_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of one run as `marble train` leaves it, and the comparison of four."""
    root = tmp_path_factory.mktemp("real")
    words = ["log.harmony_every=2", "eval.every=2"]
    runs = [train(root / m, "studio-fast", f"balance.method={m}", *words) for m in METHODS]
    return {"one": runs[0] / "report.html", "four": write(runs, root / "four.html")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "four"])
def test_a_real_page_is_drawn_used_and_accessible(
    open_page, real_pages: dict[str, Path], name: str
) -> None:
    page = open_page(real_pages[name])
    assert assert_drawn(page) == {"one": 13, "four": 14}[name]
    assert_not_empty_to_the_eye(page)
    use_sliders(page)
    use_filter_and_sort(page, source="ocr", reward="studio-clip")
    use_theme(page)
    for theme in ("light", "dark"):
        assert_accessible(page, theme)


@pytest.mark.slow
def test_the_comparison_shows_every_method(open_page, real_pages: dict[str, Path]) -> None:
    page = open_page(real_pages["four"])
    tables = page.locator("#comparison table")
    for table in tables.all():
        labels = table.locator("tbody th").all_inner_texts()
        assert [label for label in labels if label != "base"] == list(METHODS)
    assert page.locator("#by-method img").count() >= 5  # base and four runs, at least one prompt
    page.locator("#run").focus()
    page.keyboard.press("End")
    assert page.locator("#verdict .meta:visible strong").inner_text() == METHODS[-1]
    assert_drawn(page)
