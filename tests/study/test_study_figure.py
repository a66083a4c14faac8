"""The figure of a study shows what its table says."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"  # tables of earlier studies
SIZES = [f"studies/results/{name}.json" for name in ("small", "regime", "large")]
SIGNALS = [f"studies/results/geometry-{pictures}.json" for pictures in (24, 96, 576)]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return lambda name="study_figure": importlib.import_module(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("study_figure", ["studies/results/regime.json"]),
        ("study_figure", ["studies/results/long.json", "--curves"]),
        ("settings_figure", ["tests/study/data/stress.json"]),
        ("steer_figure", ["studies/results/steer-toy.json"]),
        ("batch_figure", [*SIZES, "--geometry", *SIGNALS]),
    ],
)
def test_a_figure_is_one_command(name, words, tmp_path):
    out = tmp_path / "new" / "figure.png"
    command = [sys.executable, f"scripts/{name}.py", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == str(out) and out.stat().st_size > 10_000, done.stderr


def test_every_shown_rule_is_there_best_on_top(script):
    table = json.loads((DATA / "paper.json").read_text())
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


def test_curves_begin_at_the_base_and_end_where_the_table_does(script):
    table = json.loads((ROOT / "studies/results/long.json").read_text())
    worst, mean = script().curves(table).axes
    [part] = table["settings"]
    shown = table["show"]
    rows = [row for row in part["rows"] if "values" in row and row["name"] in shown]
    assert len(rows) > 5
    assert len(worst.lines) - 1 == len(mean.lines) - 1 == len(rows)  # and the line at 0
    for line in worst.lines[:-1]:
        [row] = [r for r in rows if line.get_label().startswith(f"{r['name']} (")]
        x, y = line.get_data()
        assert (x[0], y[0]) == (0, 0) and x[-1] == row["curve"][-1]["step"]
        assert y[-1] == row["curve"][-1]["worst gain"]["mean"]


def test_worst_gains_of_several_settings_stand_side_by_side(script):
    table = json.loads((DATA / "stress.json").read_text())
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


def test_gains_stand_over_the_signal_of_their_batches(script):
    tables, records = ([json.loads((ROOT / f).read_text()) for f in fs] for fs in (SIZES, SIGNALS))
    figure = script("batch_figure")
    worst, mean = figure.draw(tables[::-1], records[::-1]).axes  # in any order
    signals = [figure.signal(record) for record in records]
    assert signals == sorted(signals)  # more pictures, more signal
    labels = [label.get_text() for label in worst.get_xticklabels()]
    assert [label.split("\n")[1] for label in labels] == [f"{n} pictures" for n in (24, 96, 576)]
    lines = dict(zip(worst.get_legend_handles_labels()[1], worst.containers))
    assert set(lines) == {"marble", "gdpo", "uniform", "weighted-sum"}  # those that all three have
    for axes, by in ((worst, "worst gain"), (mean, "mean gain")):
        for name, drawn in zip(lines, axes.containers):
            rows = [
                next(row for row in table["settings"][0]["rows"] if row["name"] == name)
                for table in tables
            ]
            assert list(drawn.lines[0].get_ydata()) == [row["values"][by]["mean"] for row in rows]


def test_every_study_needs_its_geometry(script):
    with pytest.raises(SystemExit, match="2 studies, but 1 files of --geometry"):
        script("batch_figure").draw([{}, {}], [{}])


def test_the_front_has_the_slider_s_way_and_every_slider_begins_at_its_default(script):
    found = json.loads((ROOT / "studies/results/steer-toy.json").read_text())
    module = script("steer_figure")
    front, lines = module.draw(found).axes
    steered = [row for row in found["fronts"] if row["cell"] == "steer"]
    one = module.widest(steered)
    spread = {name: max(s["gain"]) - min(s["gain"]) for name, s in steered[0]["sliders"].items()}
    assert spread[one] == max(spread.values()) and one in front.get_xlabel()
    shown = front.get_legend_handles_labels()[1]
    assert [module.SHOWN["steer"], module.SHOWN["retrained"]] == shown[:2]
    points = dict(zip(shown, front.collections))
    assert [text.get_text() for text in front.texts] == [
        "soups: 1 further out, down to (3.7, −2.1)"
    ]
    low, high = front.get_ylim()
    assert all(low < y < high for y in points[module.SHOWN["retrained"]].get_offsets()[:, 1])
    assert len(points[module.SHOWN["retrained"]].get_offsets()) == 5
    for name, line in zip(found["rewards"], lines.lines):
        x, y = line.get_data()
        assert line.get_label() == name and y[list(x).index(1.0)] == 0
