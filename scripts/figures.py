"""What the scripts that draw one figure from JSON share: command line, colours, style.

A script calls `main` with its docstring, what its files are, and a function that draws their
contents.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's palette: told apart by everyone, also in print; marks for those who print in grey.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#999999"),
    *("#882255", "#44AA99"),  # from Tol's, for figures of more than eight
)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", "p")
STYLE = Path(__file__).with_name("figures.mplstyle")


def main(
    doc: str,
    files: str,
    draw: Callable[[list[Any], argparse.Namespace], plt.Figure],
    *,
    several: bool = False,
    options: Mapping[str, dict[str, Any]] | None = None,
) -> None:
    """`python SCRIPT FILE --out PICTURE`; `options` are further arguments of the script."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("files", nargs="+" if several else 1, type=Path, help=files)
    parser.add_argument("--out", "-o", type=Path, required=True)
    for flag, about in (options or {}).items():
        parser.add_argument(flag, **about)
    asked = parser.parse_args()
    records = [json.loads(file.read_text()) for file in asked.files]
    with plt.style.context(STYLE):
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        draw(records, asked).savefig(asked.out, bbox_inches="tight")
    print(asked.out)
