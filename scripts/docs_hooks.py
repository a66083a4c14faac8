"""Hooks of the documentation site (mkdocs.yml).

Pages link to files of the repository that are no pages (`../studies/…`): on the site these are
named instead of linked. `api/fields.md` is filled with the table of every recipe field.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./((?!\.)[^)#]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri == "api/fields.md":
        markdown += fields()
    if page.file.src_uri.count("/"):
        return markdown
    return OUTSIDE.sub(_named, markdown)


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
