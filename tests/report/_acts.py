"""What a reader does with a page, by mouse and by keyboard, each act checked as it is done."""

from __future__ import annotations

import io
import re

import numpy as np
from PIL import Image

# A chart that not every method has is left out, frame and all.
PLOTS = ".chart:not([hidden]) .plot"

UNDRAWN = """() => [...document.querySelectorAll('.chart:not([hidden]) .plot')].filter(plot => {
  const box = plot.getBoundingClientRect();
  const marks = plot.querySelectorAll('.trace path, .heatmaplayer image, .fills path');
  return plot.hidden || box.height < 100 || !plot.querySelector('svg.main-svg') || !marks.length;
}).map(plot => plot.id)"""

SHARED_COLOURS = """() => {
  const owners = {};
  for (const dot of document.querySelectorAll('[data-reward]')) {
    const colour = getComputedStyle(dot).backgroundColor;
    (owners[colour] ??= new Set()).add(dot.dataset.reward);
  }
  return Object.values(owners).filter(names => names.size > 1).map(names => [...names]);
}"""

CHECKED = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def assert_drawn(page) -> int:  # type: ignore[no-untyped-def]
    """Every chart and picture is there; returns the number of charts."""
    charts = page.locator(PLOTS).count()
    assert page.evaluate(UNDRAWN) == []
    assert page.locator(".nothing:visible").count() == 0
    assert page.locator(f"{PLOTS}[role=img][aria-label]").count() == charts
    widths = page.evaluate("[...document.querySelectorAll('img')].map(i => i.naturalWidth)")
    assert widths and min(widths) > 0
    assert page.evaluate(SHARED_COLOURS) == []
    return charts


def assert_not_empty_to_the_eye(page) -> None:  # type: ignore[no-untyped-def]
    """Each chart as a picture: marks on at least one pixel in a hundred, in several colours."""
    for plot in page.locator(PLOTS).all():
        pixels = np.asarray(Image.open(io.BytesIO(plot.screenshot())).convert("RGB")).astype(int)
        ground = np.median(pixels.reshape(-1, 3), axis=0)
        marked = np.abs(pixels - ground).max(axis=2) > 24
        name = plot.get_attribute("id")
        assert marked.mean() > 0.01, name
        assert len(np.unique(pixels[marked] // 32, axis=0)) > 3, name


def use_sliders(page, charts: tuple[str, ...] = ("cosines", "advantages")) -> None:  # type: ignore[no-untyped-def]
    for chart in charts:
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


def use_theme(page) -> None:  # type: ignore[no-untyped-def]
    theme = "document.documentElement.dataset.theme"
    ink = "document.querySelector('#alpha svg .xtick text').style.fill"
    first, first_ink = page.evaluate(theme), page.evaluate(ink)
    other = {"dark": "light", "light": "dark"}[first]
    page.click("#theme")
    assert page.evaluate(theme) == other
    assert page.locator("#theme").get_attribute("aria-pressed") == str(other == "dark").lower()
    assert page.evaluate(ink) != first_ink
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(theme) == first and page.evaluate(ink) == first_ink


def use_filter_and_sort(page, source: str, reward: str) -> None:  # type: ignore[no-untyped-def]
    """The pictures' source and order, with a click and a key and with keys alone."""
    tags = page.locator("#picture-list .tag")
    every = set(tags.all_inner_texts())
    assert len(every) > 1
    chosen = page.locator("#picture-source")
    choose(page, "#picture-source", source)
    assert set(tags.all_inner_texts()) == {source}
    chosen.focus()
    page.keyboard.press("Home")
    assert set(tags.all_inner_texts()) == every
    order = page.locator("#picture-sort")
    choose(page, "#picture-sort", f"{reward}: largest rise")
    rises = changes(page, reward)
    assert len(rises) > 1 and rises == sorted(rises, reverse=True)
    order.focus()
    page.keyboard.press("ArrowUp")  # the entry above: its largest fall
    falls = changes(page, reward)
    assert falls == sorted(falls)
    page.keyboard.press("Home")
    assert order.input_value() == "telling"


def choose(page, select: str, label: str) -> None:  # type: ignore[no-untyped-def]
    """Click a list open and take the entry of that label."""
    labels = page.locator(f"{select} option").all_inner_texts()
    steps = labels.index(label) - page.evaluate(f"document.querySelector('{select}').selectedIndex")
    page.click(select)
    for _ in range(abs(steps)):
        page.keyboard.press("ArrowDown" if steps > 0 else "ArrowUp")
    page.keyboard.press("Enter")


def changes(page, reward: str) -> list[float]:  # type: ignore[no-untyped-def]
    """The changes of one reward under the pictures shown, in their order."""
    lines = page.locator("#picture-list .scores li").all_inner_texts()
    own = [line for line in lines if line.split("\n")[0].strip() == reward]
    return [_change(line) for line in own]


def assert_accessible(page, theme: str) -> None:  # type: ignore[no-untyped-def]
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    if page.evaluate("document.documentElement.dataset.theme") != theme:
        page.click("#theme")
    # A chart is one picture with a label to the checker; its text has the colours of the page's.
    context = {"exclude": [".plot .plot-container"]}
    results = Axe().run(page, context=context, options={"runOnly": CHECKED}).response
    found = [(v["id"], v["nodes"][0]["html"][:200]) for v in results["violations"]]
    assert found == [], theme
    passed = {rule["id"] for rule in results["passes"]}
    assert {"color-contrast", "image-alt", "label", "select-name"} <= passed


def _change(line: str) -> float:
    """The signed change at the end of a score line: '… ▼ 0.067' → −0.067."""
    arrow, amount = re.findall(r"([▲▼=]) ([\d.]+)", line)[-1]
    return -float(amount) if arrow == "▼" else float(amount)
