"""The page as a reader meets it: drawn, operable by mouse and keyboard, accessible, harmless."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _runs import REWARDS, Spec, make_run

from marble.report import write

UNDRAWN = """() => [...document.querySelectorAll('.plot')].filter(plot => {
  const box = plot.getBoundingClientRect();
  const marks = plot.querySelectorAll('.trace path, .heatmaplayer image, .fills path');
  return plot.hidden || box.height < 100 || !plot.querySelector('svg.main-svg') || !marks.length;
}).map(plot => plot.id)"""


@pytest.mark.parametrize(("name", "charts"), [("one", 13), ("four", 14)])
def test_every_chart_is_drawn(open_page, pages, name: str, charts: int) -> None:
    page = open_page(pages[name])
    assert page.locator(".plot").count() == charts
    assert page.evaluate(UNDRAWN) == []
    assert page.locator(".nothing:visible").count() == 0
    assert page.locator(".plot[role=img][aria-label]").count() == charts
    widths = page.evaluate("[...document.querySelectorAll('img')].map(i => i.naturalWidth)")
    assert len(widths) > 20 and min(widths) > 0


def test_sliders_work_by_mouse_and_keyboard(desk) -> None:
    page = desk
    for chart in ("cosines", "advantages"):
        cells = f"document.getElementById('{chart}').data[0].z"
        slider, label = page.locator(f"#{chart}-slider"), page.locator(f"#{chart}-at")
        at_end, cells_at_end = label.inner_text(), page.evaluate(cells)
        slider.focus()
        page.keyboard.press("ArrowLeft")
        assert int(label.inner_text()) < int(at_end)
        assert page.evaluate(cells) != cells_at_end
        page.keyboard.press("End")
        assert label.inner_text() == at_end and page.evaluate(cells) == cells_at_end
        box = slider.bounding_box()
        page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
        assert int(label.inner_text()) < int(at_end)
        assert slider.get_attribute("aria-valuetext") == f"step {label.inner_text()}"


def test_pictures_sort_and_filter(desk) -> None:
    page = desk

    def shown(reward: str) -> list[float]:
        lines = page.locator("#picture-list .scores li", has_text=reward).all_inner_texts()
        return [_change(line) for line in lines]

    page.select_option("#picture-sort", "-ocr")
    falls = shown("ocr")
    assert falls == sorted(falls) and len(falls) == 12
    page.select_option("#picture-sort", "+ocr")
    rises = shown("ocr")
    assert rises == sorted(rises, reverse=True) and rises[0] > falls[0]
    page.select_option("#picture-source", "ocr")
    assert set(page.locator("#picture-list .tag").all_inner_texts()) == {"ocr"}
    page.select_option("#picture-sort", "-quality")
    page.locator("#picture-regressed").focus()
    page.keyboard.press("Space")
    assert all(change < 0 for change in shown("quality"))
    page.locator("#picture-regressed").uncheck()
    # By keyboard: the list opens on its first entry and takes a letter as a choice.
    page.locator("#picture-source").focus()
    page.keyboard.press("Home")
    assert "of 36 pairs" in page.inner_text("#picture-status")
    page.locator("#picture-more").focus()
    page.keyboard.press("Enter")
    assert page.locator("#picture-list > li").count() == 24


def test_theme_by_click_and_keyboard(desk) -> None:
    page = desk
    theme = "document.documentElement.dataset.theme"
    ink = "document.querySelector('#alpha svg .xtick text').style.fill"
    assert page.evaluate(theme) == "dark"
    dark_ink = page.evaluate(ink)
    page.click("#theme")
    assert page.evaluate(theme) == "light"
    assert page.locator("#theme").get_attribute("aria-pressed") == "false"
    assert page.evaluate(ink) != dark_ink
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(theme) == "dark" and page.evaluate(ink) == dark_ink


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
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(pages[name])
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    # A chart is one picture with a label to the checker; its text has the colours of the page's.
    context = {"exclude": [".plot .plot-container"]}
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    for theme in themes:
        if page.evaluate("document.documentElement.dataset.theme") != theme:
            page.click("#theme")
        results = Axe().run(page, context=context, options={"runOnly": tags}).response
        found = [(v["id"], v["nodes"][0]["html"][:200]) for v in results["violations"]]
        assert found == [], theme
        passed = {rule["id"] for rule in results["passes"]}
        assert {"color-contrast", "image-alt", "label", "select-name"} <= passed


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
        page.evaluate("[...document.querySelectorAll('.chart.empty .plot')].map(p => p.id)")
    )
    assert empty == quiet, "a chart is either drawn or says that nothing was logged"
    assert page.locator(".nothing:visible").count() == len(quiet)
    assert len(page.inner_text(".headline")) > 20


def _change(line: str) -> float:
    """The signed change at the end of a score line: '… ▼ 0.067' → −0.067."""
    arrow, amount = re.findall(r"([▲▼=]) ([\d.]+)", line)[-1]
    return -float(amount) if arrow == "▼" else float(amount)
