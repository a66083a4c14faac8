"""Sentences that are too long and words that the glossary replaces, in the documentation.

    python scripts/readability.py [FILE.md …]     # without files: README, docs, CONTRIBUTING

Prints `file:line: what`, and exits with 1 where it found something. Tables, code and comments are
left out: they are not read as sentences.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_WORDS = 40
_COUNTED = "seconds?|images|pictures|prompts|times|steps|GB|ms"
INSTEAD = {
    r"\btwins?\b": "paired base samples",
    r"\bcanar(?:y|ies)\b": "drift statistics",
    r"\bvotes?\b": "redundancy weight",
    r"\boutvoted\b": "opposed by most other rewards",
    r"\bhardly heard\b": "has almost no weight",
    rf"\b(?:{_COUNTED}) an? (?:step|epoch|second|picture|day)\b": "per",
}
"""Words of ours → the field's."""


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """(first line, paragraph) of running text; code, tables, headings and comments left out."""
    lines: list[str] = []
    start, fenced = 0, False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        apart = not line.strip() or re.match(r"\s*(\||#|<!--|!\[|```)", line)
        item = re.match(r"\s*([-*]|\d+\.) ", line)
        if fenced or apart or item:
            if lines:
                yield start, " ".join(lines)
            lines = []
        if not fenced and not apart:
            if not lines:
                start = number
            lines.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())


def sentences(paragraph: str) -> list[str]:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    plain = re.sub(r"`[^`]*`", "CODE", plain)
    return re.split(r"(?<=[.!?:;])\s+(?=[A-Z*_(«“\"'])", plain)


def findings(text: str) -> list[tuple[int, str]]:
    found = []
    for line, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            words = re.findall(r"[^\W\d_][\w’'-]*", sentence)
            if len(words) > MOST_WORDS:
                found.append((line, f"{len(words)} words: {sentence[:70]}…"))
        plain = re.sub(r"`[^`]*`", "", paragraph)
        for pattern, instead in INSTEAD.items():
            for match in re.finditer(pattern, plain, re.IGNORECASE):
                found.append((line, f"“{match[0]}”: write {instead}"))
    return found


def main() -> None:
    chosen = [Path(name) for name in sys.argv[1:]]
    files = chosen or [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(ROOT.glob("docs/*.md")),
    ]
    count = 0
    for file in files:
        for line, what in findings(file.read_text(encoding="utf-8")):
            count += 1
            print(f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{line}: {what}")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
