"""Synthetic runs and their pages, built once; and a browser to open them in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from _browser import LEFT_OUT
from _runs import Spec, make_run
from _train import train_methods

from marble.report import write

BROWSER_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
BROWSER_ARGS += ["--disable-component-update", "--disable-sync", "--no-first-run"]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A healthy, finished five-reward run."""
    return make_run(tmp_path_factory.mktemp("runs") / "studio")


@pytest.fixture(scope="session")
def methods(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four methods on the same prompts."""
    root = tmp_path_factory.mktemp("methods")
    gains = {"marble": 0.9, "weighted_sum": 0.4, "gdpo": 0.5, "uniform": 0.7}
    return [make_run(root / m, Spec(method=m, gain=g, prompts=18)) for m, g in gains.items()]


@pytest.fixture(scope="session")
def cheating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that pleases one reward with gaudy pictures, all alike."""
    return make_run(tmp_path_factory.mktemp("runs") / "cheat", Spec(method="single", cheat=True))


@pytest.fixture(scope="session")
def pages(
    run: Path, methods: list[Path], cheating: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("pages")
    return {
        "one": write([run], out / "one.html"),
        "four": write(methods, out / "four.html"),
        "cheat": write([cheating], out / "cheat.html"),
    }


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four methods, really trained; minutes, so for slow tests only."""
    return train_methods(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="session")
def real_pages(real_runs: list[Path]) -> dict[str, Path]:
    """The page of one run as `marble train` leaves it, and the comparison of four."""
    four = write(real_runs, real_runs[0].parent / "four.html")
    return {"one": real_runs[0] / "report.html", "four": four}


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of Debian's chromium; installed where this may be done, else one line says how."""
    if os.environ.get("MARBLE_NO_BROWSER") == "1":
        pytest.skip(LEFT_OUT)
    found = shutil.which("chromium")
    if not found and hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]):
            subprocess.run(command, capture_output=True, timeout=600)
        found = shutil.which("chromium")
    if not found:
        pytest.fail(
            "no chromium: `apt-get install chromium` (or MARBLE_NO_BROWSER=1 to leave it out)",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[object]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("no playwright: pip install 'marble-rl[dev]'", pytrace=False)

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=BROWSER_ARGS)
        yield launched
        launched.close()


class Opener:
    """Opens reports; `close` fails on any console error or request beyond the file itself."""

    def __init__(self, browser) -> None:  # type: ignore[no-untyped-def]
        self.browser, self.contexts, self.troubles = browser, [], []

    def __call__(self, file: Path, width: int = 1280, height: int = 900, scheme: str = "light"):  # type: ignore[no-untyped-def]
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(90_000)
        page.on("console", lambda m: m.type == "error" and self.troubles.append(m.text))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("request", self._check)
        page.goto(file.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    def _check(self, request) -> None:  # type: ignore[no-untyped-def]
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.troubles.append(request.url)

    def close(self) -> None:
        for context in self.contexts:
            context.close()
        assert not self.troubles


@pytest.fixture
def open_page(browser) -> Iterator[Opener]:  # type: ignore[no-untyped-def]
    opener = Opener(browser)
    yield opener
    opener.close()


@pytest.fixture(scope="module")
def desk(browser, pages: dict[str, Path]) -> Iterator[object]:  # type: ignore[no-untyped-def]
    """One page of one run, opened once for the tests that only use its controls."""
    opener = Opener(browser)
    yield opener(pages["one"], scheme="dark")
    opener.close()


def pytest_terminal_summary(terminalreporter) -> None:  # type: ignore[no-untyped-def]
    if os.environ.get("MARBLE_NO_BROWSER") == "1":
        terminalreporter.write_sep("!", LEFT_OUT, red=True, bold=True)
