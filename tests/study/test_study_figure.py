"""The figure of a study shows what its table says."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def script():
    spec = importlib.util.spec_from_file_location("f", ROOT / "scripts" / "study_figure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_shown_rule_is_there_best_on_top():
    table = json.loads((ROOT / "studies/results/paper.json").read_text())
    [axes] = script().draw(table).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert {label.split(" ")[0] for label in labels} == set(table["show"])
    rows = {row["name"]: row for row in table["settings"][0]["rows"] if "values" in row}
    worst = [rows[label.split(" ")[0]]["values"]["worst gain"]["mean"] for label in labels]
    assert worst == sorted(worst)  # from the bottom up
    low, high = axes.get_xlim()
    gains = [g["mean"] for name in table["show"] for g in rows[name]["gains"].values()]
    assert low < min(gains) and max(gains) < high
    assert next(text.get_text() for text in axes.figure.legends[0].get_texts()) == "ocr"
