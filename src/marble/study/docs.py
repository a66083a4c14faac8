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
from marble.study.across import KINDS
from marble.study.specialists import LEAST
from marble.study.write import (
    cell,
    markdown,
    order,
    ran_on,
    sortable,
    summary,
    to_json,
)

SHOWN = ["worst gain", "mean gain", LEAST, "composite", "conflict"]
"""What a page shows of one setting, where it was measured; the rest is in the stored table."""
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
        table = read_table(stored) if stored.is_file() else None
        lines = _not_measured(found["name"]) if table is None else told(table)
        return found[1] + "\n".join(lines) + "\n" + found[3]

    return BLOCK.sub(block, text)


def read_table(stored: Path) -> dict[str, Any]:
    """A stored table, with the present name of a column that was renamed."""
    table: dict[str, Any] = json.loads(stored.read_text().replace('"canaries":', '"drift flags":'))
    return table


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
        known = {c for row in parts[0]["rows"] for c in row.get("values", ())}
        shown = [column for column in SHOWN if column in known]
        return [*lines, *summary(parts[0], shown), "", *order(parts[0], ["worst gain"])[-1:]]
    lines += ["Worst relative gain (mean over seeds ± half of the 95 % interval):", ""]
    lines += _across(parts, "worst gain", table.get("across"))
    pooled = (table.get("across") or {}).get("settings")
    lines += ["", "Composite (mean z-score of all scores among the runs of a setting):", ""]
    lines += _across([p for p in parts if not pooled or p["setting"] in pooled], "composite")
    for found in ("across", "across all"):
        if found == "across" or (table.get(found) and table[found]["settings"] != pooled):
            lines += _over_settings(table.get(found), table.get("show"))
    return [*lines, *_first(parts)]


def _shown(part: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    keep = None if not names else {"base", part["best"], *names}
    return {**part, "rows": [r for r in part["rows"] if keep is None or r["name"] in keep]}


def _across(
    parts: list[dict[str, Any]], by: str, pooled: dict[str, Any] | None = None
) -> list[str]:
    """Cells down, settings across, and `pooled` over settings beside them; the best in bold."""
    columns: dict[str, dict[str, Any]] = {
        p["setting"]: {r["name"]: r["values"][by] for r in p["rows"] if "values" in r}
        for p in parts
    }
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    if pooled:
        heads = {kind: f"{kind} of {len(pooled['settings'])}" for kind in KINDS}
        heads["mean gain"] = "*all rewards' mean*"
        for key, head in heads.items():
            columns[head] = {row["name"]: row[key] for row in pooled["rows"]}
    best = {c: max(v, key=lambda n: sortable(v[n]["mean"])) for c, v in columns.items() if v}
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        texts = [(c, cell(values.get(name), 2)) for c, values in columns.items()]
        shown = [f"**{text}**" if best.get(c) == name else text for c, text in texts]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return lines


def _over_settings(pooled: dict[str, Any] | None, names: list[str] | None) -> list[str]:
    """Whom the best is ahead of when settings are taken together, paired by seed."""
    if not pooled:
        return []
    lines = [
        "",
        f"Over {', '.join(pooled['settings'])} ({len(pooled['seeds'])} seeds), paired by seed:",
        "",
    ]
    for kind in KINDS:
        best = pooled["best"][kind]
        shown = [r for r in pooled["rows"] if not names or r["name"] in names]
        behind = {r["name"]: r[f"{kind} behind"] for r in shown if r["name"] != best}
        told = ", ".join(f"`{name}` by {cell(gap, 2)}" for name, gap in behind.items())
        what = "on average" if kind == "mean" else "in each method's worst setting"
        lines.append(f"- {what}, `{best}` is ahead of {told} in worst gain")
    return lines


def _first(parts: list[dict[str, Any]]) -> list[str]:
    """Who is first in worst gain where, and clear of how many others there."""
    told = []
    for part in parts:
        behind = [r["behind"]["worst gain"] for r in part["rows"] if "behind" in r]
        clear = sum(gap["lo"] is not None and gap["lo"] > 0 for gap in behind)
        of = "all others" if behind and clear == len(behind) else f"{clear} of {len(behind)}"
        told.append(f"`{part['best']}` in *{part['setting']}* ({of})")
    return ["", f"First, and ahead of how many, paired by seed, clear of 0: {', '.join(told)}."]


def _not_measured(name: str) -> list[str]:
    return [f"Not measured yet: `marble study studies/{name}.yaml` has not been run in full."]
