"""Docstrings as Markdown for the documentation site (a griffe extension, see mkdocs.yml).

The sources keep docstrings that read well as plain text. Two habits of theirs would run together on
a page: lists of `name: what it does` with indented continuations, and examples with `>>>`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ITEM = re.compile(r"(?P<name>[a-z]\w*(?:, [a-z]\w*)*): (?P<text>\S.*)")


class Readable(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    paragraphs = re.split(r"\n\s*\n", docstring)
    return "\n\n".join(_example(p) or _listed(p) or p for p in paragraphs)


def _example(paragraph: str) -> str | None:
    if not paragraph.lstrip().startswith(">>> "):
        return None
    return f"```pycon\n{paragraph.strip()}\n```"


def _listed(paragraph: str) -> str | None:
    """Items of a paragraph whose first line is one; what follows without an indent stays prose."""
    lines = paragraph.split("\n")
    continued = len(lines) > 1 and (lines[1].startswith("    ") or _ITEM.match(lines[1]))
    if not (_ITEM.match(lines[0]) and continued):
        return None
    out: list[str] = []
    item = False
    for line in lines:
        if found := _ITEM.match(line):
            out.append(f"- `{found['name']}`: {found['text']}")
            item = True
        elif item and line.startswith("    "):
            out.append("  " + line.strip())
        else:
            out += ["", line] if item else [line]
            item = False
    return "\n".join(out)
