"""The page as a reader meets it: drawn, operable by mouse and keyboard, accessible, harmless."""

from __future__ import annotations

from pathlib import Path

import pytest
from _acts import (
    SHARED_COLOURS,
    UNDRAWN,
    assert_accessible,
    assert_drawn,
    changes,
    use_filter_and_sort,
    use_sliders,
    use_theme,
)
from _runs import REWARDS, Spec, make_run

from marble.report import write


@pytest.mark.parametrize(("name", "charts"), [("one", 13), ("four", 14)])
def test_every_chart_is_drawn(open_page, pages, name: str, charts: int) -> None:
    page = open_page(pages[name])
    assert assert_drawn(page) == charts
    assert page.locator("img").count() > 20


def test_sliders_work_by_mouse_and_keyboard(desk) -> None:
    use_sliders(desk)


def test_pictures_sort_and_filter(desk) -> None:
    page = desk
    use_filter_and_sort(page, source="ocr", reward="ocr")
    page.select_option("#picture-sort", "-ocr")
    assert (
        len(changes(page, "ocr")) == 12
    )  # a third of the prompts have text; the rest are no zeros
    page.select_option("#picture-sort", "-quality")
    page.locator("#picture-regressed").focus()
    page.keyboard.press("Space")
    assert all(change < 0 for change in changes(page, "quality"))
    page.locator("#picture-regressed").uncheck()
    assert "of 36 pairs" in page.inner_text("#picture-status")
    page.locator("#picture-more").focus()
    page.keyboard.press("Enter")
    assert page.locator("#picture-list > li").count() == 24


def test_theme_by_click_and_keyboard(desk) -> None:
    assert desk.evaluate("document.documentElement.dataset.theme") == "dark"
    use_theme(desk)


def test_chips_hide_and_show_a_reward(desk) -> None:
    page = desk
    names = "document.getElementById('alpha').data.map(t => t.name)"
    assert page.evaluate(names) == list(REWARDS)
    page.click("[data-chip=clip]")
    assert "clip" not in page.evaluate(names)
    page.locator("[data-chip=clip]").focus()
    page.keyboard.press("Space")
    assert page.evaluate(names) == list(REWARDS)


def test_runs_switch_and_any_two_rewards(open_page, pages) -> None:
    page = open_page(pages["four"])
    assert page.locator("#verdict .meta:visible strong").inner_text() == "marble"
    page.locator("#run").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#verdict .meta:visible strong").inner_text() == "weighted_sum"
    assert page.evaluate(UNDRAWN) == []
    page.select_option("#pareto-x", "clip")
    page.select_option("#pareto-y", "aesthetic")
    assert page.evaluate("document.getElementById('pareto').layout.xaxis.title.text") == "clip"
    assert "clip × aesthetic" in page.inner_text("#pareto-note")
    assert page.locator("#by-method img").count() >= 5 * 4
    assert page.locator("#comparison table").count() == 2


def test_only_runs_that_measured_progress_have_its_chart(open_page, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / method, Spec(method=method, steps=20, eval_every=10, prompts=9))
        for method in ("marble", "progress")
    ]
    page = open_page(write(runs, tmp_path / "page.html"))
    without = assert_drawn(page)
    assert page.locator("#progress-figure").is_hidden()
    page.locator("#run").focus()
    page.keyboard.press("ArrowDown")
    assert assert_drawn(page) == without + 1
    widths = [page.locator(f"#{chart}").bounding_box()["width"] for chart in ("progress", "vitals")]
    drawn = page.locator("#progress svg.main-svg").first.bounding_box()["width"]
    assert widths == pytest.approx([drawn, drawn], abs=1)
    page.keyboard.press("ArrowUp")
    assert assert_drawn(page) == without


def test_a_script_in_a_prompt_is_shown_and_not_run(open_page, tmp_path: Path) -> None:
    evil = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    spec = Spec(
        steps=20,
        eval_every=10,
        prompts=9,
        rewards=("<b onclick=alert(1)>bold</b>", "ocr"),
        extra_prompts=[(evil, "general"), ("{{ 7*7 }} <a href='javascript:hacked=1'>x</a>", "ocr")],
    )
    folder = make_run(tmp_path / "<i>run<i>", spec)
    page = open_page(write([folder], tmp_path / "page.html"))
    assert page.evaluate("window.hacked") is None
    assert evil in " ".join(page.locator("#picture-list .prompt").all_inner_texts())
    assert page.locator("main b[onclick], main img[onerror], main i").count() == 0
    assert "<i>run<i>" in page.inner_text("#verdict .meta")
    assert page.evaluate(UNDRAWN) == []
    title = page.locator("#rewards-raw .annotation-text").first
    assert title.text_content().startswith("<b onclick")


@pytest.mark.parametrize(("name", "themes"), [("four", ["light"]), ("cheat", ["light", "dark"])])
def test_the_accessibility_checker_passes(open_page, pages, name: str, themes: list[str]) -> None:
    page = open_page(pages[name])
    for theme in themes:
        assert_accessible(page, theme)


def test_a_phone_does_not_scroll_sideways(open_page, pages) -> None:
    page = open_page(pages["four"], width=360, height=740)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(UNDRAWN) == []


def test_it_prints_in_light_colours(open_page, pages) -> None:
    page = open_page(pages["one"], scheme="dark")
    page.evaluate(
        "addEventListener('beforeprint', () => { window.printed = "
        "document.documentElement.dataset.theme; })"
    )
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.evaluate("window.printed") == "light"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(Spec(steps=100, logged=1, status="running"), id="one step"),
        pytest.param(Spec(steps=100, logged=0, status=None), id="no step"),
        pytest.param(Spec(rewards=("ocr",), heldout=(), steps=20, eval_every=10), id="one reward"),
        pytest.param(
            Spec(steps=30, samples=False, advantages=False, eval_every=99), id="no samples"
        ),
        pytest.param(
            Spec(
                rewards=tuple(f"reward_{i:02d}" for i in range(32)),
                steps=40,
                eval_every=20,
                prompts=9,
            ),
            id="32 rewards",
        ),
    ],
)
def test_odd_runs_open_without_error(open_page, tmp_path: Path, spec: Spec) -> None:
    page = open_page(write([make_run(tmp_path / "odd", spec)], tmp_path / "odd.html"))
    empty = set(page.evaluate(UNDRAWN))
    quiet = set(
        page.evaluate(
            "[...document.querySelectorAll('.chart.empty:not([hidden]) .plot')].map(p => p.id)"
        )
    )
    assert empty == quiet, "a chart is either drawn or says that nothing was logged"
    assert page.locator(".nothing:visible").count() == len(quiet)
    assert len(page.inner_text(".headline")) > 20
    assert page.evaluate(SHARED_COLOURS) == []
