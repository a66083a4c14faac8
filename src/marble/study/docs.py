"""Study results in a documentation page: every number comes from a table that a study wrote.

A page holds blocks `<!-- study: NAME -->` … `<!-- end of study -->`. `publish` keeps the table as
`results/NAME.json` and `.md` beside the study file and writes the block anew; a block without a
table says that nothing has been measured.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from marble.errors import MarbleError
from marble.study.write import cell, markdown, order, ran_on, summary, to_json

SHOWN = ["worst gain", "mean gain", "composite", "conflict, other half", "canaries"]
BLOCK = re.compile(r"(<!-- study: (?P<name>[\w-]+) -->\n).*?(<!-- end of study -->)", re.DOTALL)


def publish(table: dict[str, Any], page: Path, results: Path) -> list[Path]:
    """Stores the table among the results and fills its block of the page."""
    text = page.read_text() if page.is_file() else ""
    if table["study"] not in [found["name"] for found in BLOCK.finditer(text)]:
        raise MarbleError(
            f"{page}: has no block for this study; put the lines <!-- study: {table['study']} --> "
            "and <!-- end of study --> where it belongs"
        )
    results.mkdir(exist_ok=True)
    stored = results / f"{table['study']}.json"
    stored.write_text(to_json(table))
    stored.with_suffix(".md").write_text(markdown(table))
    page.write_text(filled(text, results))
    return [stored, stored.with_suffix(".md"), page]


def filled(text: str, results: Path) -> str:
    """The page with every block written from the stored results."""

    def block(found: re.Match[str]) -> str:
        stored = results / f"{found['name']}.json"
        table = json.loads(stored.read_text()) if stored.is_file() else None
        lines = _not_measured(found["name"]) if table is None else told(table)
        return found[1] + "\n".join(lines) + "\n" + found[3]

    return BLOCK.sub(block, text)


def told(table: dict[str, Any]) -> list[str]:
    """A study's result, short: a table of the cells to show, and what the seeds agree on."""
    parts = [_shown(part, table.get("show")) for part in table["settings"]]
    done = table["runs"] - len(table["missing"])
    lines = [
        f"{table['description']} {done} of {table['runs']} runs{ran_on(table)} "
        f"([all numbers](../studies/results/{table['study']}.md)).",
        "",
    ]
    if len(parts) == 1:
        return [*lines, *summary(parts[0], SHOWN), "", *order(parts[0])]
    lines += ["Worst relative gain (mean over seeds ± half of the 95 % interval):", ""]
    lines += _across(parts)
    for part in parts:
        said = " ".join(line.strip() for line in order(part, ["worst gain"]))
        lines += ["", f"*{part['setting']}*: {said}"]
    return lines


def _shown(part: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    keep = None if not names else {"base", part["best"], *names}
    return {**part, "rows": [r for r in part["rows"] if keep is None or r["name"] in keep]}


def _across(parts: list[dict[str, Any]]) -> list[str]:
    """Cells down, settings across; the best of a setting in bold."""
    names = list(dict.fromkeys(r["name"] for p in parts for r in p["rows"] if "values" in r))
    lines = [
        "| | " + " | ".join(p["setting"] for p in parts) + " |",
        "|---" * (len(parts) + 1) + "|",
    ]
    for name in names:
        cells = []
        for part in parts:
            row = next((r for r in part["rows"] if r["name"] == name), None)
            text = cell(None if row is None else row["values"]["worst gain"], 2)
            cells.append(f"**{text}**" if name == part["best"] else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _not_measured(name: str) -> list[str]:
    return [f"Not measured yet: `marble study studies/{name}.yaml` has not been run in full."]
