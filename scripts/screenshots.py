"""Take the screenshots of report pages that the README and the docs show, from run folders.

    for method in marble gdpo weighted_sum; do
      marble train studio balance.method=$method train.steps=36 data.prompts_per_epoch=8 \\
        eval.every=12 eval.prompts=60 --out runs/$method
    done
    marble train studio balance.method=single balance.reward=studio-aesthetic objective.kl=0 \\
      'rollout.old_decay={initial: 0, rate: 0, cap: 0}' \\
      train.steps=16 data.prompts_per_epoch=8 eval.every=8 eval.prompts=60 --out runs/cheat
    python scripts/screenshots.py runs/marble runs/gdpo runs/weighted_sum --cheat runs/cheat

The first run gives its own page (verdict, training, harmony, specialists, pictures, dark, phone);
all runs together give the comparison and the trade-offs; the run after --cheat, made to cheat,
gives the drift statistics, which come from the first run without it. Files are named
report-SECTION.png. Needs playwright and Debian's chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

from marble.report import write

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ARGS += ["--disable-component-update", "--disable-sync", "--no-first-run"]
WIDE, PHONE = (1280, 900), (390, 844)
SHARP = 1.5
"""Picture pixels a page pixel: text stays crisp on a dense screen."""
TALLEST = 1850
"""Page pixels of a section that are kept; the rest of a long one repeats itself."""
MARGIN = 20
OWN = ("verdict", "training", "harmony", "specialists", "pictures")
WHOLE = {"dark": (WIDE, "dark"), "phone": (PHONE, "light")}
NAMES = (*OWN, "tradeoffs", "drift", "comparison", *WHOLE)
UNPINNED = ".top, .chips { position: static !important; }"


def open_page(
    browser: Browser, html: Path, size: tuple[int, int] = WIDE, scheme: str = "light"
) -> Page:
    """The page in a window of that size and colour scheme, drawn and standing still."""
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        device_scale_factor=SHARP,
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    page.set_default_timeout(180_000)
    page.goto(html.resolve().as_uri())
    page.wait_for_selector("html[data-ready]")
    return page


def section(page: Page, name: str) -> bytes:
    """One section with a little air around it, without what is pinned to the window."""
    box = page.locator(f"section#{name}").bounding_box()
    if box is None:
        raise SystemExit(f"the page has no section {name}")
    clip = FloatRect(
        x=box["x"] - MARGIN,
        y=box["y"],
        width=box["width"] + 2 * MARGIN,
        height=min(box["height"], TALLEST),
    )
    return page.screenshot(clip=clip, full_page=True, style=UNPINNED)


def shoot(
    browser: Browser, runs: Sequence[Path], cheat: Path | None, pages: Path
) -> dict[str, bytes]:
    """Every screenshot by its name; the pages are written into a folder of their own."""
    own = write(runs[:1], pages / "own.html")
    every = write(runs, pages / "every.html") if len(runs) > 1 else own
    caught = write([cheat], pages / "cheat.html") if cheat else own
    wanted = {name: own for name in OWN} | {"tradeoffs": every, "drift": caught}
    if len(runs) > 1:
        wanted["comparison"] = every
    made = {}
    for html in dict.fromkeys((own, every, caught)):
        page = open_page(browser, html)
        names = [name for name, source in wanted.items() if source == html]
        made |= {name: section(page, name) for name in names}
        page.close()
    for name, (size, scheme) in WHOLE.items():
        page = open_page(browser, own, size, scheme)
        made[name] = page.screenshot()
        page.close()
    return made


def keep(png: bytes, file: Path) -> None:
    """256 colours are enough for charts and small pictures and keep the repository small."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    # An octree keeps the colours of small marks, which a median cut gives up for large areas.
    few = picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders; the first has its page")
    parser.add_argument("--cheat", type=Path, help="a run made to cheat, for the drift statistics")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if not chromium:
        raise SystemExit("no chromium: apt-get install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as pages, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        for name, png in shoot(browser, options.runs, options.cheat, Path(pages)).items():
            file = options.out / f"report-{name}.png"
            keep(png, file)
            print(file)
        browser.close()


if __name__ == "__main__":
    main()
