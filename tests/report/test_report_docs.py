"""The screenshots in the docs: all there, all made by the script, none left over."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/screenshots.py"


def made_by_the_script() -> set[str]:
    return {f"report-{name}.png" for name in runpy.run_path(str(SCRIPT))["NAMES"]}


def test_every_screenshot_shown_is_there_and_made_by_the_script() -> None:
    pytest.importorskip("playwright")
    shown = set(re.findall(r"img/(report-[\w-]+\.png)", (ROOT / "docs/report.md").read_text()))
    readme = set(re.findall(r"docs/img/(report-[\w-]+\.png)", (ROOT / "README.md").read_text()))
    assert shown == made_by_the_script()
    assert readme <= shown
    files = {file.name for file in (ROOT / "docs/img").glob("report-*.png")}
    assert files == shown
    for name in files:
        with Image.open(ROOT / "docs/img" / name) as picture:
            assert min(picture.size) > 400
    assert sum((ROOT / "docs/img" / name).stat().st_size for name in files) < 4_000_000


@pytest.mark.slow
def test_the_script_makes_them_from_run_folders(
    chromium: str, real_runs: list[Path], tmp_path: Path
) -> None:
    words = [*map(str, real_runs), "--cheat", str(real_runs[-1]), "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(SCRIPT), *words], check=True, timeout=1200)
    assert {file.name for file in tmp_path.iterdir()} == made_by_the_script()
