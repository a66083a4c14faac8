"""Pages of runs that were really trained: four methods on the studio model, a few steps each."""

from __future__ import annotations

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
from _train import METHODS


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
