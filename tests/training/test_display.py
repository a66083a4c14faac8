"""What a person sees, in a terminal and without one."""

import io
import re

import pytest
from rich.console import Console

from marble.training import display as display_module
from marble.training.display import Display, lasting, signed, sparkline


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
    assert lines[-1] == "step 3/3  ocr 0.200  worst cos -0.020  12.3 images/s"
    assert re.fullmatch(r"step 1/3  ocr 0\.100  .*  0:00:0\d left", lines[1])
    assert len(lines) <= 3  # quiet: no line a step


def test_a_notebook_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    assert len(shown(terminal=True).strip().splitlines()) <= 3


@pytest.mark.parametrize("width", [100, 80])
def test_live_view_has_a_row_for_every_reward(width):
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown(terminal=True, width=width))
    last = text[text.rindex("step 3/3") :]
    ocr = next(line for line in last.splitlines() if line.strip().startswith("ocr"))
    assert "0.200" in ocr and "0.75" in ocr and "▁" in ocr and "█" in ocr
    other = next(line for line in last.splitlines() if "a-reward" in line)
    assert "–" in other and "0.25" in other  # nothing measured yet
    assert "+0.200" in ocr  # last step against first
    assert "worst cosine of the update with a reward: -0.020" in " ".join(last.split())
    assert "epoch 3" in last


@pytest.mark.parametrize("width", [60, 80, 200])
def test_live_view_keeps_to_one_line_a_reward(width):
    """However long the run, its names or its numbers."""
    names = ["ocr", "an-aesthetic-score-of-ones-own"]
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=30)
    display = Display(names, 500, 0, console)
    for step in range(1, 301):
        found = {"step": step, "epoch": step, "images_per_s": 123.4, "harmony/min": 0.1}
        for name in names:
            found |= {f"alpha/{name}": 0.5, f"reward/{name}/mean": 20 + 1e-6 * step}
        display.show(found)
    with console.capture() as capture:
        console.print(display._table())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get())
    lines = [line for line in text.splitlines() if "20.000" in line]
    assert len(lines) == 2
    assert all(len(line) <= width and "0.50" in line and "e-0" in line for line in lines)
    assert lines[0].count("█") >= 1 and len(lines[0].strip()) <= 130


def test_what_goes_on_between_steps_is_named():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, height=30)
    with Display(["ocr"], 3, 0, console) as display:
        display.doing("evaluating 96 pictures")
    assert "evaluating 96 pictures" in file.getvalue()


def test_a_line_breaks_between_words_in_a_terminal_and_nowhere_else():
    line = "held-out, base, step 0: " + "  ".join(f"reward-{i} 0.123" for i in range(9))
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=80, height=30)
        Display(["ocr"], 3, 0, console).say(line)
        lines = file.getvalue().splitlines()
        assert len(lines) == (3 if terminal else 1)
        assert all(len(part) <= 80 for part in lines) or not terminal
        assert " ".join(file.getvalue().split()) == " ".join(line.split())


def test_sparkline():
    assert sparkline([], 5) == ""
    assert sparkline([1.0, 1.0], 5) == "▁▁"
    assert sparkline([0, 1, 2, 3], 4) == "▁▃▆█"
    assert len(sparkline(list(range(1000)), 24)) == 24


def test_signed():
    assert signed(0.0) == "+0.000"
    assert signed(-0.25) == "-0.250"
    assert signed(0.00012) == "+1.2e-04"


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def strftime(self, *_: object) -> str:
        return "Mon 12:00"

    def localtime(self, *_: object) -> None:
        return None


@pytest.fixture
def hands(monkeypatch):
    found = Hands()
    monkeypatch.setattr(display_module, "time", found)
    return found


def test_time_left_of_steps_that_take_minutes(hands):
    """Steps of 130 s after ten minutes of evaluation, which are no part of any step."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, height=30, get_time=lambda: 0)
    display = Display(["ocr", "a-reward"], 1000, 0, console)
    hands.now += 600
    display.begin()
    assert display.clock.left() is None
    for step in (1, 2, 3):
        hands.now += 130
        display.show(row(step, 0.1))
    assert display.clock.left() == pytest.approx(130 * 997)
    hands.now += 100  # counts down while a step goes on
    assert display.clock.left() == pytest.approx(130 * 997 - 100)
    with console.capture() as capture:
        console.print(display._progress)
    assert "1 day, 11:58:30" in capture.get() and "-:--:--" not in capture.get()
    said = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "about 130 s" not in said and "about 2 min per step: 997 more steps take" in said
    assert said.count("per step") == 1 and "until Mon 12:00" in said


def test_a_resumed_run_counts_its_own_steps(hands):
    display = Display(["ocr", "a-reward"], 100, 60, Console(file=io.StringIO()))
    display.begin()
    hands.now += 20
    display.show(row(61, 0.1))
    hands.now += 20
    display.show(row(62, 0.1))
    assert display.clock.left() == pytest.approx(38 * 20)


def test_only_a_paired_gain_is_coloured():
    """Means of batches with different prompts may fall where the model improves."""

    def table(found):
        console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
        display = Display(["ocr", "a-reward"], 9, 0, console)
        for step, value in ((1, 30.0), (2, 13.5)):
            display.show(row(step, value) | found)
        with console.capture() as capture:
            console.print(display._table(), display._caption())
        return " ".join(re.sub(r"\x1b\[(2|2;3|1|3)m|\x1b\[0m", "", capture.get()).split())

    unpaired = table({})
    assert "-16.500" in unpaired and "\x1b[31m" not in unpaired
    assert "prompts differ from step to step" in unpaired
    paired = table({"progress/ocr": 0.17, "progress/a-reward": -0.2})
    assert "\x1b[32m+0.17" in paired and "\x1b[31m-0.20" in paired and "-16.5" not in paired
    assert "same prompts and seeds" in paired


def test_the_probe_goes_before_what_the_balance_measures():
    display = Display(["ocr", "a-reward"], 9, 0, Console(file=io.StringIO()))
    display.show(row(1, 0.1) | {"progress/ocr": 0.3})
    assert display.gains == {"ocr": 0.3}
    display.gained({"probe/ocr": 0.1})
    display.show(row(2, 0.1) | {"progress/ocr": 0.4})
    assert display.gains == {"ocr": 0.1}


def test_lasting():
    told = [lasting(s) for s in (3.21, 12.3, 119, 130, 7300, 26 * 86400)]
    assert told == ["3.2 s", "12 s", "119 s", "2 min", "2 h 01 min", "26.0 days"]


FRAME = """\
step 2/9 ━━━━━━╺━━━━━━━━━━━━━━━━━━━━ ELAPSED 0:04:40 left epoch 2  12.3 images/s
  reward        now    change    trend       α
  ocr         0.200    +0.200    ▁█       0.75
  a-reward        –         –             0.25
  means of 5 steps; prompts differ from step to step; worst cosine of the
  update with a reward: -0.020
"""


def test_the_whole_frame_in_eighty_columns(hands):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=30)
    display = Display(["ocr", "a-reward"], 9, 0, console)
    display.begin()
    for step, value in ((1, 0.1), (2, 0.3)):
        hands.now += 40
        display.show(row(step, value, worst=-0.02))
    with console.capture() as capture:
        console.print(display._progress, display._table(), display._caption())
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capture.get())
    text = re.sub(r" \d:\d\d:\d\d (?=0:04:40)", " ELAPSED ", text)
    assert "".join(f"{line.rstrip()}\n" for line in text.splitlines()) == FRAME
