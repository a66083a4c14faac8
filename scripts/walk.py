"""A fresh clone, README only: from nothing to a reward of one's own, and the time of each step.

    python scripts/walk.py               # half an hour on two quiet cores; renews the table in docs
    python scripts/walk.py --steps 3     # with trainings of three steps; the table says so

The last commit is cloned into an empty folder, and the commands that README.md gives to a newcomer
are run there in its order and by its words: `make train` with its installation into `.venv`, a
picture, the files of the reward of one's own, two trainings with it, and the page that compares
them. Home and environment are empty too, but for what finds packages (PATH, PIP_…, certificates).
A step that does not leave what it should ends the walk. Left out: `make test`, and SD3.5, which
needs a GPU. The times go to benchmarks/results/walk.json; scripts/readme_numbers.py shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "walk.json"
KEPT = re.compile(r"PATH|LANG|TERM|SHELL|PIP_.*|.*PROXY|.*proxy|.*CERT.*|.*CA_?BUNDLE")
"""Environment variables that a walk keeps: where programs and packages are found."""
FIRST, OWN = "# marble", "## Add a reward of your own"


@dataclass(frozen=True)
class Step:
    command: str
    leaves: str
    """A pattern of files that must be there afterwards, and were not before."""
    told: str = ""
    """What the table calls it, where that is not the command."""


@dataclass(frozen=True)
class Taken:
    command: str
    seconds: float
    processor_seconds: float
    of_others: float
    """Processor seconds of all other programs meanwhile: on a quiet machine almost none."""
    left: str


def section(readme: str, title: str) -> str:
    return readme.split(f"{title}\n", 1)[1].split("\n## ")[0]


def fenced(text: str, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)
    return [body for language, body in found if language in languages]


def lines(text: str) -> list[str]:
    """The commands of the shell blocks, without what is said about them."""
    every = "".join(fenced(text, "sh")).splitlines()
    return [line.split("  #")[0].strip() for line in every]


def own_files(readme: str) -> dict[str, str]:
    """The files that the section on rewards of one's own shows, by the name in their first line."""
    bodies = fenced(section(readme, OWN), "python", "yaml")
    return {body.split()[1]: body for body in bodies}


def steps(readme: str, fewer: int | None) -> list[Step]:
    """README's commands in its order; `fewer` optimiser steps where that is asked for."""
    short = f" train.steps={fewer}" if fewer else ""
    first = section(readme, FIRST)
    assert lines(first) == ["make train", "make test"], lines(first)
    [sample] = re.findall(r"`(marble sample [^`]+)`", first)
    walk = [
        Step("make install", ".venv/bin/marble"),
        Step("make train" if not fewer else f"marble train studio{short}", "runs/*/report.html"),
        Step(sample, "samples/*.png"),
    ]
    for line in lines(section(readme, OWN)):
        out = re.search(r"(?:--out|-o) (\S+)", line)
        assert out, line
        train = line.startswith("marble train")
        leaves = f"{out[1]}/report.html" if train else out[1]
        walk.append(Step(line + short if train else line, leaves))
    return walk


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if KEPT.fullmatch(key)}
    return {**kept, "HOME": str(home)}


def there(folder: Path, pattern: str) -> set[Path]:
    return {path for path in folder.glob(pattern) if path.exists()}


def processor_seconds() -> tuple[float, float]:
    """Those of this walk's commands, and of the whole machine."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    busy = sum(ticks) - ticks[3] - ticks[4]  # less idle, less waiting for the disk
    return own.ru_utime + own.ru_stime, busy / os.sysconf("SC_CLK_TCK")


def take(step: Step, folder: Path, home: Path, log: Path) -> Taken:
    before, used, begin = there(folder, step.leaves), processor_seconds(), time.monotonic()
    activate = "if [ -f .venv/bin/activate ]; then source .venv/bin/activate; fi"
    with log.open("w") as file:
        done = subprocess.run(
            ["bash", "-c", f"{activate}\n{step.command}"],
            cwd=folder,
            env=environment(home),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    seconds, after = time.monotonic() - begin, processor_seconds()
    new = sorted(there(folder, step.leaves) - before)
    if done.returncode or not new:
        why = f"status {done.returncode}" if done.returncode else f"no new {step.leaves}"
        sys.exit(f"{step.command}: {why}; the end of {log}:\n{log.read_text()[-3000:]}")
    own, machine = after[0] - used[0], after[1] - used[1]
    left = str(new[0].relative_to(folder))
    return Taken(step.told or step.command, seconds, own, max(machine - own, 0.0), left)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Follows README.md in a fresh clone, and times it."
    )
    parser.add_argument("--steps", type=int, help="optimiser steps of every training")
    parser.add_argument("--keep", action="store_true", help="do not delete the folder at the end")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="walk-"))
    clone, home = folder / "clone", folder / "home"
    home.mkdir()
    print(f"in {folder}", flush=True)
    get = Step(f"git clone {ROOT} clone", "clone/README.md", "git clone")
    walk = [take(get, folder, home, folder / "0.log")]
    readme = (clone / "README.md").read_text()
    for number, step in enumerate(steps(readme, options.steps), 1):
        if step.command.startswith("marble train warm"):
            for name, text in own_files(readme).items():
                (clone / name).write_text(text)
        walk.append(take(step, clone, home, folder / f"{number}.log"))
        print(f"{walk[-1].seconds:6.0f} s  {step.command} -> {walk[-1].left}", flush=True)
    print(f"{sum(taken.seconds for taken in walk):6.0f} s  in all")
    ask = ["git", "rev-parse", "--short", "HEAD"]
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": subprocess.check_output(ask, cwd=clone, text=True).strip(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "steps": options.steps,
        "walk": [asdict(taken) for taken in walk],
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    write = [clone / ".venv/bin/python", ROOT / "scripts" / "readme_numbers.py"]
    subprocess.run(write, check=True)
    print(f"{RESULT.relative_to(ROOT)} and the table in docs/studio.md are renewed")
    if not options.keep:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
