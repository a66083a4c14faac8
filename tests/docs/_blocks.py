"""The code blocks of the documentation, and the commands that its shell blocks would run."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("sh", "python", "yaml", "toml", "text")
STAND_INS = {"my-recipe.yaml": "extends: studio\n", "mine.py": "def score(*_):\n    return []\n"}
"""Files of the reader's own that a page names without showing them."""
_COMMANDS = ("marble", "make", "python", "pip", "hf", "accelerate", "torchrun")
_END = "\x1e"


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    body: str

    @property
    def file(self) -> str | None:
        """The file it shows, where its first line says so: `# warm.py`, `\"\"\"aura.py: …`."""
        found = re.match(r"(?:# |\"\"\")([\w-]+\.(?:py|yaml))\b", self.body)
        return found[1] if found else None


def blocks(*languages: str) -> list[Block]:
    """Those of all pages, in order; without languages, all."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```([^\n`]*)\n(.*?)^```$", text, re.M | re.S):
            line = text[: match.start()].count("\n") + 1
            block = Block(str(page.relative_to(ROOT)), line, match[1], match[2])
            if not languages or block.language in languages:
                found.append(block)
    return found


def write_files(page: str, folder: Path) -> Path:
    """The files that a page shows, and stand-ins for those it only names."""
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
    for block in blocks("python", "yaml"):
        if block.page == page and block.file:
            (folder / block.file).write_text(block.body)
    return folder


def commands(body: str, folder: Path) -> list[list[str]]:
    """What bash makes of a shell block: each command's words, loops and quotes resolved.

    Bash itself reads the block, with the commands replaced by functions that note their words;
    a command that is none of them is not found.
    """
    stubs = [f'{name}() {{ printf "%s\\0" {name} "$@" $\'{_END}\' >&3; }}' for name in _COMMANDS]
    script = "\n".join(["set -eu", "PATH=/nowhere", *stubs, body])
    noted = folder / "commands"
    done = subprocess.run(
        ["/bin/bash", "-c", f"exec 3>{noted}\n{script}"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{done.stderr}\n{body}"
    words = noted.read_text().split("\0")[:-1]
    found: list[list[str]] = [[]]
    for word in words:
        if word == _END:
            found.append([])
        else:
            found[-1].append(word)
    return found[:-1]


def inline() -> list[tuple[str, str]]:
    """(page, command) of every `marble …` in running text without placeholders."""
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for command in re.findall(r"`(marble [^`]+)`", text):
            if not re.search(r"\b[A-Z]{2,}|…|\\\||\[", command.replace('"TEA"', "")):
                found.append((str(page.relative_to(ROOT)), " ".join(command.split())))
    return found
