"""Sliders over a steered run's settings: what they show, by mouse, keyboard and on a phone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from _acts import assert_accessible, assert_drawn
from _runs import REWARDS, Spec, add_front, make_run

from marble.report import write
from marble.report.folder import read_run
from marble.report.front import front, traded
from marble.report.pictures import Store


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "steered"
    return add_front(make_run(folder, Spec(method="steer", prompts=9)))


@pytest.fixture(scope="module")
def page_file(steered: Path) -> Path:
    return write([steered], steered / "report.html")


def test_a_front_is_read_as_far_as_it_is_whole(steered: Path, tmp_path: Path) -> None:
    found = front(read_run(steered), Store(10**6), 10**6)
    assert found is not None and found["names"] == list(REWARDS) and len(found["settings"]) == 11
    assert all(len(s["images"]) == 2 for s in found["settings"])
    small = front(read_run(steered), Store(10), 10)
    assert small is not None and small["samples"] == [] and len(small["settings"]) == 11
    other = make_run(tmp_path / "plain", Spec(prompts=3))
    assert front(read_run(other), Store(10), 10) is None
    index = json.loads((steered / "front" / "index.json").read_text())
    index["settings"][3]["weights"] = [1.0]
    index["settings"][4]["gains"] = "none"
    index["settings"][5]["files"] = ["../../../etc/passwd", 7]
    index["settings"][6]["gains"][0] = None
    (other / "front").mkdir()
    for damaged in (index, {"names": "x"}, {"names": ["a", "b"], "top": 2, "settings": 3}):
        (other / "front" / "index.json").write_text(json.dumps(damaged))
        some = front(read_run(other), Store(10**6), 10**6)
        assert (some is not None) == (damaged is index)
        write([other], tmp_path / "page.html")
    (other / "front" / "index.json").write_text(json.dumps(index))
    some = front(read_run(other), Store(10**6), 10**6)
    assert some is not None and len(some["settings"]) == 9
    assert some["settings"][4]["gains"][0] is None


def test_the_front_begins_with_the_two_rewards_that_are_traded_most() -> None:
    at = np.linspace(-1, 1, 9)
    gains = np.stack([at, 3 * at, -0.1 * at, 1 - 2 * at, 0.5 - at], axis=1)  # geneval against pick
    settings = [{"gains": row} for row in gains.tolist()]
    assert traded(settings) == (1, 3)
    settings[2]["gains"][0] = None  # not measured
    assert traded(settings) == (1, 3)
    assert traded(settings[:1]) == (0, 1)


def test_moving_a_slider_moves_pictures_gains_and_the_point(open_page, page_file: Path) -> None:
    page = open_page(page_file)
    assert assert_drawn(page) == 14
    found = front(read_run(page_file.parent), Store(10), 10)
    assert found is not None
    shown = [page.input_value(f"#front-{axis}") for axis in "xy"]
    assert shown == [REWARDS[k] for k in found["axes"]]
    assert page.locator("#slider-inputs input").count() == 5
    chosen = page.locator("#slider-pictures li:first-child img").nth(1)
    at_default, gains = chosen.get_attribute("src"), page.inner_text("#slider-gains")
    point = "document.getElementById('front').data[2].x[0]"
    before = page.evaluate(point)
    slider = page.locator("#weight-0")
    slider.focus()
    page.keyboard.press("End")  # ocr at 2
    assert page.inner_text("#weight-0-at") == "2"
    assert slider.get_attribute("aria-valuetext") == "ocr 2"
    assert "ocr 2, geneval 1" in page.inner_text("#slider-status")
    assert chosen.get_attribute("src") != at_default
    assert page.inner_text("#slider-gains") != gains
    assert page.evaluate(point) > before
    assert "[1.0, 2.0, 1.0, 1.0, 1.0, 1.0]" in page.inner_text("#slider-code")
    page.keyboard.press("ArrowLeft")  # a little less: still the nearest
    assert page.inner_text("#weight-0-at") == "1.95"
    assert "ocr 2, geneval 1" in page.inner_text("#slider-status")
    box = page.locator("#weight-3").bounding_box()
    page.mouse.click(box["x"] + 2, box["y"] + box["height"] / 2)
    page.locator("#slider-reset").focus()
    page.keyboard.press("Enter")
    assert chosen.get_attribute("src") == at_default and page.evaluate(point) == before
    page.select_option("#front-x", "clip")
    assert "clip" in page.evaluate("document.getElementById('front').layout.xaxis.title.text")
    for theme in ("light", "dark"):
        assert_accessible(page, theme)


def test_on_a_phone_nothing_is_cut_off(open_page, page_file: Path) -> None:
    page = open_page(page_file, width=375, height=700, scheme="dark")
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
    for k in range(5):
        box = page.locator(f"#weight-{k}").bounding_box()
        assert box["width"] >= 90 and box["x"] + box["width"] <= 375 and box["height"] >= 24
    page.locator("#weight-2").press("Home")
    assert "clip 0" in page.inner_text("#slider-status")


LONG = ("ocr", "studio-geneval", "studio-clip", "studio-pick", "studio-aesthetic")
CUT = """selector => [...document.querySelectorAll(selector)]
    .filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.trim().slice(0, 40))"""


def test_verdicts_and_names_are_whole_at_every_width(open_page, tmp_path: Path) -> None:
    """With the studio's names; columns give way before the verdict does."""
    run = add_front(make_run(tmp_path / "run", Spec(method="steer", prompts=9, rewards=LONG)))
    page = open_page(write([run], tmp_path / "page.html"), width=1200)
    for width in (1200, 1000, 800, 700, 600, 500, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(CUT, "#slider-gains .name") == [], width
        assert page.evaluate(CUT, "#verdict .scroll:has(.gains)") == [], width
        words = page.locator(".gains .word")
        assert words.count() > 5 and words.first.bounding_box()["width"] > 40
    assert page.locator(".gains .base").first.is_hidden()


def test_a_run_without_sliders_has_none(open_page, steered: Path, tmp_path: Path) -> None:
    plain = make_run(tmp_path / "plain", Spec(prompts=9))
    page = open_page(write([plain, steered], tmp_path / "two.html"))
    assert page.locator("#sliders").is_hidden()
    page.select_option("#run", "1")
    assert page.locator("#sliders").is_visible()
    assert page.locator("#slider-pictures img").count() == 4
    alone = open_page(write([plain], tmp_path / "one.html"))
    assert alone.locator("#sliders").count() == 0
