"""The figure of a study shows what its table says."""

import importlib.util
import json
from pathlib import Path

import numpy as np

from marble.harmonise._progress import Progress

ROOT = Path(__file__).parents[2]


def script(name="study_figure"):
    spec = importlib.util.spec_from_file_location("f", ROOT / "scripts" / f"{name}.py")
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


def test_worst_gains_of_several_settings_stand_side_by_side():
    table = json.loads((ROOT / "studies/results/stress.json").read_text())
    figure = script("settings_figure")
    labels = figure.labels(table)
    assert labels == [*table["across"]["settings"], "least of these"]
    found = figure.points(table)
    for part in table["settings"]:
        for row in part["rows"]:
            if "values" in row and part["setting"] in labels:
                worst = row["values"]["worst gain"]
                at = found[row["name"]][labels.index(part["setting"])]
                assert at == (worst["mean"], worst["lo"], worst["hi"])
    [axes] = figure.draw(table).axes
    low, high = axes.get_ylim()
    ends = [end for values in found.values() for value in values if value for end in value[1:]]
    assert low < min(ends) and max(ends) < high
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(found)


def test_progress_by_batches_is_what_the_rule_measures():
    """The figure's reference is `Progress` without twins, on the same batches."""
    rows = [{"reward/a/mean": 0.1 * i + (i % 3), "reward/a/std": 1.0 + i % 2} for i in range(20)]
    rule = Progress(warmup=5, decay=0.9)
    expected = []
    for row in rows:
        rule.observe(np.array([row["reward/a/mean"]]), np.array([row["reward/a/std"]]))
        expected.append(float(rule.progress()[0]))
    found = script("twins_figure").by_batches(rows, "a")
    assert found[:5] == [None] * 5
    np.testing.assert_allclose(found[5:], expected[5:], atol=1e-4)


def test_the_twins_figure_shows_every_run():
    records = json.loads((ROOT / "studies/results/twins.json").read_text())
    twins, batches, weights = script("twins_figure").draw(records).axes
    assert len(weights.lines) == len(records) + 1  # and the line of equal weights
    for axes, kind in ((twins, "twins"), (batches, "batches")):
        shown = sorted(y for dots in axes.collections for _, y in dots.get_offsets())
        told = sorted(one[kind][name][-1] for one in records for name in one["heldout"])
        np.testing.assert_allclose(shown, told)
