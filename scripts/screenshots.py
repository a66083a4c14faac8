"""Take the screenshots of report pages that the README and the docs show.

    python scripts/screenshots.py report.html [more.html …] --out docs/img [--name studio]

Each page gives NAME-page.png, one file a section (NAME-verdict.png, NAME-training.png, …),
NAME-dark.png and NAME-phone.png. Needs playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import FloatRect, Page, ViewportSize, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync", "--no-first-run"]
DESKTOP = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=390, height=844)
TALLEST = 1600
"""Pixels of a section that are kept; the rest of a long one repeats itself."""
MARGIN = 24
UNPINNED = ".top, .chips { position: static !important; }"


def shoot(page: Page, html: Path, out: Path, name: str) -> list[Path]:
    """All screenshots of one report page; returns the files written."""
    made = []

    def keep(label: str, png: bytes) -> None:
        file = out / f"{name}-{label}.png"
        picture = Image.open(io.BytesIO(png)).convert("RGB")
        picture = picture.crop((0, 0, picture.width, min(picture.height, TALLEST)))
        # 256 colours are enough for charts and keep the repository small.
        picture.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
        made.append(file)

    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(DESKTOP)
    page.goto(html.resolve().as_uri())
    page.wait_for_selector("html[data-ready]")
    keep("page", page.screenshot())
    for section in page.locator("main > section").all():
        box = section.bounding_box()
        assert box is not None
        clip = FloatRect(
            x=box["x"] - MARGIN, y=box["y"], width=box["width"] + 2 * MARGIN, height=box["height"]
        )
        png = page.screenshot(clip=clip, full_page=True, style=UNPINNED)
        keep(str(section.get_attribute("id")), png)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.wait_for_selector('html[data-theme="dark"]')
    page.evaluate("scrollTo(0, 0)")
    keep("dark", page.screenshot())
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(600)  # charts redraw a moment after the width has settled
    keep("phone", page.screenshot())
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--name", help="prefix of the files; default: the page's own name")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        page = browser.new_page()
        for html in options.pages:
            for file in shoot(page, html, options.out, options.name or html.stem):
                print(file)
        browser.close()


if __name__ == "__main__":
    main()
