"""Take the screenshots of report pages that the README and the docs show.

    python scripts/screenshots.py report.html [more.html …] --out docs/img [--name studio]

Each page gives NAME-verdict.png, NAME-training.png, … (one a section), NAME-dark.png and
NAME-phone.png. Needs playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync", "--no-first-run"]
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


def shoot(page: Page, html: Path, out: Path, name: str) -> list[Path]:
    """All screenshots of one report page; returns the files written."""
    made: list[Path] = []

    def take(label: str, **options: object) -> None:
        file = out / f"{name}-{label}.png"
        page.screenshot(path=str(file), **options)  # type: ignore[arg-type]
        made.append(file)

    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    page.goto(html.resolve().as_uri())
    page.wait_for_selector("html[data-ready]")
    take("page")
    for section in page.locator("main > section").all():
        section.scroll_into_view_if_needed()
        file = out / f"{name}-{section.get_attribute('id')}.png"
        section.screenshot(path=str(file), style=".top, .chips { position: static !important; }")
        made.append(file)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_selector('html[data-theme="dark"]')
    take("dark")
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.wait_for_timeout(600)  # charts redraw a moment after the width has settled
    take("phone")
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
