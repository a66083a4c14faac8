"""What a person sees, in a terminal and without one."""

import io
import re

import pytest
from rich.console import Console

from marble.training.display import Display, signed, sparkline


def row(step, value, worst=None):
    found = {"step": step, "epoch": step - 1, "images_per_s": 12.34, "alpha/ocr": 0.75}
    found |= {"alpha/a-reward": 0.25, "reward/ocr/mean": value, "reward/a-reward/mean": None}
    return found | ({} if worst is None else {"harmony/min": worst})


def shown(terminal: bool, width: int = 100) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, height=30)
    with Display(["ocr", "a-reward"], 3, 0, console) as display:
        display.say("held-out, base: [ocr] 0.1")
        for step in (1, 2, 3):
            display.show(row(step, 0.1 * step, worst=-0.02 if step == 1 else None))
    return file.getvalue()


def test_plain_lines_without_a_terminal():
    text = shown(terminal=False)
    assert "\x1b" not in text and "━" not in text
    lines = text.strip().splitlines()
    assert lines[0] == "held-out, base: [ocr] 0.1"  # brackets are no markup
    assert lines[-1].startswith("step 3/3  ocr 0.200  worst cos -0.020  12.3 images/s")
    assert len(lines) <= 3  # quiet: no line a step


@pytest.mark.parametrize("width", [100, 80])
def test_live_view_has_a_row_for_every_reward(width):
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(terminal=True, width=width))
    last = text[text.rindex("step 3/3") :]
    ocr = next(line for line in last.splitlines() if line.strip().startswith("ocr"))
    assert "0.200" in ocr and "0.75" in ocr and "▁" in ocr and "█" in ocr
    other = next(line for line in last.splitlines() if "a-reward" in line)
    assert "–" in other and "0.25" in other  # nothing measured yet
    assert "worst cosine of the update with a reward: -0.020" in last
    assert "epoch 3" in last


def test_sparkline():
    assert sparkline([], 5) == ""
    assert sparkline([1.0, 1.0], 5) == "▁▁"
    assert sparkline([0, 1, 2, 3], 4) == "▁▃▆█"
    assert len(sparkline(list(range(1000)), 24)) == 24


def test_signed():
    assert signed(0.0) == "+0.000"
    assert signed(-0.25) == "-0.250"
    assert signed(0.00012) == "+1.2e-04"
