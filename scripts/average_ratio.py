"""How far one cell of a study is ahead of another, in percent of its average training score.

python scripts/average_ratio.py runs/study-objectives nft grpo-sum

Per seed the mean over rewards of score/score − 1, on held-out prompts; ± half of the 95 %
t-interval over seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import stats


def final_scores(run: Path) -> dict[str, float]:
    last = json.loads((run / "evals.jsonl").read_text().splitlines()[-1])
    return {name: row["mean"] for name, row in last["rewards"].items()}


def ahead(folder: Path, cell: str, other: str) -> np.ndarray:
    """Per seed that both have, in percent."""
    found = []
    for run in sorted(folder.glob(f"{cell}-seed*")):
        rival = folder / run.name.replace(cell, other, 1)
        if rival.is_dir():
            mine, theirs = final_scores(run), final_scores(rival)
            found.append(100 * np.mean([mine[name] / theirs[name] - 1 for name in theirs]))
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("cell")
    parser.add_argument("other")
    given = parser.parse_args()
    found = ahead(given.folder, given.cell, given.other)
    if len(found) < 2:
        parser.error(f"{given.folder}: two seeds of both cells are needed, {len(found)} found")
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(ddof=1) / len(found) ** 0.5
    print(
        f"{given.cell} against {given.other}: {found.mean():+.1f} % ± {half:.1f} "
        f"({len(found)} seeds)"
    )


if __name__ == "__main__":
    main()
