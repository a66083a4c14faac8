"""Sentences that are too long, private terms and misspelt words in the documentation.

    python scripts/readability.py [FILE …]     # without files: the pages, and src's docstrings

Prints `file:line: what`, and exits with 1 where it found something. Sentences are measured in the
running text of pages, spelling in their tables too; docstrings are searched for private terms. Code
is left out. A word that is right and not in the dictionary goes into scripts/words.txt.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS = ROOT / "scripts" / "words.txt"
MOST_WORDS = 40
_COUNTED = "seconds?|images|pictures|prompts|times|steps|samples|lines?|rows?|objects?|once|GB|ms"
_PER = "step|epoch|second|picture|prompt|sample|line|day|hour|core|class"
INSTEAD = {
    r"\btwins?\b": "paired base samples",
    r"\bcanar(?:y|ies)\b": "drift statistics",
    r"\bvotes?\b": "redundancy weight",
    r"\boutvoted?\b": "opposed by most other rewards",
    r"\bcrowds?\b": "rewards that agree",
    r"\bhardly (?:heard|counts?)\b": "has almost no weight",
    r"\bpictures?-to-be\b": "the same prompts and seeds",
    rf"\b(?:{_COUNTED}) an? (?:{_PER})\b(?!['’]s)": "per",
}
"""Terms of ours, which the glossary does not have → the field's."""


def pages() -> list[Path]:
    own = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*own, *sorted((ROOT / "docs").rglob("*.md"))]


def modules() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


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


def long_sentences(text: str) -> list[tuple[int, str]]:
    found = []
    for line, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            words = re.findall(r"[^\W\d_][\w’'-]*", sentence)
            if len(words) > MOST_WORDS:
                found.append((line, f"{len(words)} words: {sentence[:70]}…"))
    return found


def terms(text: str) -> list[tuple[int, str]]:
    """Terms of ours in lines of prose, tables and headings included."""
    return [
        (number, f"“{match[0]}”: write {instead}")
        for number, line in enumerate(prose(text).split("\n"), 1)
        for pattern, instead in INSTEAD.items()
        for match in re.finditer(pattern, line, re.IGNORECASE)
    ]


def misspelt(text: str) -> list[tuple[int, str]]:
    """Lower-case words of three letters or more that neither the dictionary nor our list has."""
    found = []
    for number, line in enumerate(prose(text).split("\n"), 1):
        words = re.findall(r"(?<![\w.\-/=_:{])[a-z]{3,}(?![\w/=_}]|\.\w)", line)
        found += [(number, f"“{word}”: misspelt?") for word in words if not known(word)]
    return found


def prose(text: str) -> str:
    """The text with code, links' targets and comments blanked out, line by line."""
    blank = re.compile(
        r"^```.*?^```$|``.*?``|`[^`]*`|\]\([^)]*\)|https?://\S+|<[^>]*>", re.M | re.S
    )
    return blank.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


@cache
def known(word: str) -> bool:
    return word in _own() or bool(_dictionary().known([word]))


@cache
def _own() -> frozenset[str]:
    return frozenset(WORDS.read_text(encoding="utf-8").split())


@cache
def _dictionary():  # type: ignore[no-untyped-def]
    from spellchecker import SpellChecker

    return SpellChecker()


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring of a module, its attributes' included."""
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield node.lineno, value.value


def findings(text: str) -> list[tuple[int, str]]:
    """Everything to mend in a page, in order."""
    return sorted([*long_sentences(text), *terms(text), *misspelt(text)])


def findings_in_code(source: str) -> list[tuple[int, str]]:
    """Private terms in docstrings."""
    return [
        (start + line - 1, what) for start, text in docstrings(source) for line, what in terms(text)
    ]


def main() -> None:
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or [*pages(), *modules()]
    count = 0
    for file in chosen:
        look = findings_in_code if file.suffix == ".py" else findings
        for line, what in look(file.read_text(encoding="utf-8")):
            count += 1
            print(f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{line}: {what}")
    sys.exit(1 if count else 0)


if __name__ == "__main__":
    main()
