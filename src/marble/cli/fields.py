"""The recipe's fields as a table, for `marble recipes --fields`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marble.errors import MarbleError
from marble.recipe import Recipe, reference
from marble.recipe.explain import nearest
from marble.recipe.reference import FieldDoc

REPEATED = "rewards.heldout.*."
"""Fields of a held-out reward are those of a training reward: the table has them once."""


def chosen_fields(parts: Sequence[str]) -> list[FieldDoc]:
    """Fields of the named parts (`balance`, `model.lora`, `balance.rho`); without one, all."""
    docs = reference()
    if not parts:
        return docs
    found: list[FieldDoc] = []
    for part in parts:
        own = [d for d in docs if d.path == part or d.path.startswith(f"{part}.")]
        if not own:
            sections = list(dict.fromkeys(d.path.split(".")[0] for d in docs if "." in d.path))
            near = nearest(part, [*sections, *(d.path for d in docs)])
            hint = f"did you mean {near}?" if near else f"sections: {', '.join(sections)}"
            raise MarbleError(f"--fields {part}: there is no such section or field; {hint}")
        found += own
    return found


def as_records(docs: Sequence[FieldDoc]) -> list[dict[str, Any]]:
    return [
        {"field": d.path, "type": d.kind, "default": d.default, "description": d.description}
        for d in docs
    ]


def show_fields(docs: Sequence[FieldDoc], console: Console) -> None:
    """One table per section. Piped, a field is one line with its whole path, for `grep`."""
    sections: dict[str, list[FieldDoc]] = {}
    for doc in docs:
        if not doc.path.startswith(REPEATED):
            sections.setdefault(doc.path.split(".")[0] if "." in doc.path else "", []).append(doc)
    rows = {
        section: [
            (_name(doc, section, console), written(doc.default), _meaning(doc, console))
            for doc in own
        ]
        for section, own in sections.items()
    }
    everything = [row for own in rows.values() for row in own]
    widths = [max(len(row[column]) for row in everything) for column in (0, 1)]
    for number, (section, own) in enumerate(rows.items()):
        title = f"{section}.…" if section else "recipe"
        about = Recipe.model_fields[section].description if section else "What it is called."
        console.print(Text("\n" if number else "").append(title, style="bold").append(f"  {about}"))
        table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        table.add_column("field", no_wrap=True, width=widths[0] + 2)
        table.add_column("default", no_wrap=True, width=widths[1])
        table.add_column("meaning")
        for name, default, meaning in own:
            table.add_row(f"  {name}", default, meaning)
        console.print(table)


def _name(doc: FieldDoc, section: str, console: Console) -> str:
    """Under its section's heading a field needs no more than its own name; what it is an option
    of (`… (method: mgda)`) then stands with its meaning."""
    if not console.is_terminal:
        return doc.path
    return doc.path.removeprefix(f"{section}.").partition(" (")[0]


def _meaning(doc: FieldDoc, console: Console) -> Text:
    """The description; the type too where the default does not show it."""
    told = {"text", "number", "integer", "true | false"}
    plain = doc.kind in told and doc.default is not None
    of = doc.path.partition(" (")[2].rstrip(")") if console.is_terminal else ""
    start = f"{of}. " if of else ""
    return Text(start + doc.description).append("" if plain else f" ({doc.kind})", style="dim")


def written(value: Any) -> str:
    """A default as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return '""' if value == "" else str(value)
