"""Hooks of the documentation site (mkdocs.yml).

Pages link to files of the repository that are no pages (`../studies/…`): on the site these are
named instead of linked. A link that reads like its file (`[sd35.md](sd35.md)`) reads there like the
page's entry in the navigation. `api/fields.md` is filled with the table of every recipe field.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"\[(?P<file>[\w-]+\.md)\]\((?P=file)")
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./((?!\.)[^)#]+)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    if page.file.src_uri == "api/fields.md":
        markdown += fields()
    if page.file.src_uri.count("/"):
        return markdown
    titles = dict(_entries(config["nav"]))
    markdown = FILE.sub(lambda link: f"[{titles[link['file']]}]({link['file']}", markdown)
    return OUTSIDE.sub(_named, markdown)


def _entries(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """(file, title) of every page in the navigation."""
    for entry in nav:
        for title, inside in entry.items():
            if isinstance(inside, str):
                yield inside, title
            else:
                yield from _entries(inside)


def _named(link: re.Match[str]) -> str:
    text, path = link[1], link[2]
    bare = text.strip("`")
    return f"`{path}`" if bare == path or bare == Path(path).name else f"{text} (`{path}`)"


def fields() -> str:
    """Every field of a recipe as Markdown tables, one per section."""
    sys.path.insert(0, str(ROOT / "src"))
    from marble.cli.fields import REPEATED, written
    from marble.recipe import Recipe, reference

    lines, last = [], None
    for doc in reference():
        if doc.path.startswith(REPEATED):
            continue
        section = doc.path.split(".")[0] if "." in doc.path else "recipe"
        if section != last:
            about = "" if section == "recipe" else Recipe.model_fields[section].description or ""
            lines += [
                "",
                f"## {section}",
                "",
                about,
                "",
                "| field | default | meaning |",
                "|---|---|---|",
            ]
            last = section
        kind = f" *({doc.kind})*" if "|" in doc.kind and doc.kind != "true | false" else ""
        cells = [f"`{doc.path}`", f"`{written(doc.default)}`", doc.description + kind]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
