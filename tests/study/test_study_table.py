"""The table of a study, from run folders whose numbers were worked out by hand."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from _study_runs import BASE, make_run, make_study, moved

from marble.errors import MarbleError
from marble.study import Cell, Failure, study_table, write_tables
from marble.study.measure import PICTURES, measure
from marble.study.statistics import agreement, over_seeds, paired
from marble.study.write import markdown

# -- one run -----------------------------------------------------------------------------------


def test_relative_gains_are_in_standard_deviations_of_the_base(tmp_path):
    found = measure(make_run(tmp_path / "r", BASE, moved(a=0.5, b=-0.5, h=0.1)))
    assert found.gains["a"] == pytest.approx(0.5)
    assert found.gains["b"] == pytest.approx(-0.25)
    assert found.values["worst gain"] == pytest.approx(-0.25)
    assert found.values["mean gain"] == pytest.approx(0.125)
    assert (found.trained, found.heldout, found.judged) == (["a", "b"], ["h"], ["a", "b"])
    assert found.scores["b"] == pytest.approx(1.5) and found.base["b"] == pytest.approx(2.0)
    assert found.values["minutes"] == 1.0


def test_domination_and_collapse(tmp_path):
    """a up and b down is neither, but two pictures have only a."""
    found = measure(make_run(tmp_path / "r", BASE, moved(a=0.5, b=-0.5)))
    assert (found.values["domination"], found.values["collapse"]) == (0.2, 0.0)
    worse = measure(make_run(tmp_path / "s", BASE, moved(a=-1, b=-1)))
    assert (worse.values["domination"], worse.values["collapse"]) == (0.0, 1.0)


def test_judged_rewards_alone_decide(tmp_path):
    found = measure(make_run(tmp_path / "r", BASE, moved(a=0.5, b=-0.5)), judge=("a",))
    assert found.judged == ["a"]
    assert found.values["worst gain"] == found.values["mean gain"] == pytest.approx(0.5)
    assert found.values["domination"] == 1.0


def test_conflict_in_the_batch_on_the_other_half_and_as_applied(tmp_path):
    rows = [
        {"harmony/min": 0.1, "harmony_heldout/min": -0.1, "harmony_applied/min": -0.3},
        {"loss": 1.0},  # a step that measured nothing
        {"harmony/min": 0.2, "harmony_heldout/min": -0.1, "harmony_applied/min": 0.3},
    ]
    found = measure(make_run(tmp_path / "r", BASE, moved(), harmony=rows)).values
    conflicts = [found[k] for k in ("conflict", "conflict, other half", "conflict, applied")]
    assert conflicts == [0.0, 1.0, 0.5]
    assert math.isnan(measure(make_run(tmp_path / "s", BASE, moved())).values["conflict"])


def test_drift_flags_are_counted(tmp_path):
    calm = measure(make_run(tmp_path / "r", BASE, moved()))
    gaudy = measure(make_run(tmp_path / "s", BASE, moved(), drift=(0.5, 0.9)))
    assert (calm.values["drift flags"], gaudy.values["drift flags"]) == (0.0, 1.0)


def test_pictures_until_the_worst_gain_is_reached(tmp_path):
    """0 at the start, 0.25 after nine epochs of 4 × 2 pictures: 0.2 would lie at 7.2 epochs."""
    folder = make_run(tmp_path / "r", BASE, moved(a=0.5, b=1.2))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["data"] = {"prompts_per_epoch": 4, "images_per_prompt": 2}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = "".join(json.dumps({"step": i, "epoch": i}) + "\n" for i in range(1, 10))
    (folder / "metrics.jsonl").write_text(rows)
    assert measure(folder).values[PICTURES] == pytest.approx(9 * 8 * 0.3 / 0.5)
    low = make_run(tmp_path / "s", BASE, moved(a=0.2, b=2))
    assert math.isnan(measure(low).values[PICTURES])


def test_shares_of_the_specialists_gain(tmp_path):
    """Specialists are told by their coefficients, and are a yardstick, not in the race."""
    study = make_study(tmp_path, {"both": [0.3, 0.5], "only-a": [0.8, 1.2]})
    for seed in (0, 1):
        path = tmp_path / f"only-a-seed{seed}" / "metrics.jsonl"
        path.write_text(json.dumps({"step": 1, "coefficient/a": 2.0, "coefficient/b": 0.0}) + "\n")
    [part] = study_table(study, tmp_path)["settings"]
    rows = {row["name"]: row for row in part["rows"]}
    share = rows["both"]["shares"]["a"]
    assert share["mean"] == pytest.approx(0.4) and share["n"] == 2
    assert list(rows["both"]["shares"]) == ["a"]  # nobody was trained on b alone
    assert rows["only-a"]["shares"] == {}
    assert "least share" not in rows["both"]["values"]
    text = markdown(study_table(study, tmp_path))
    assert "share of the specialist's gain | a |" in text and "| both | 0.40" in text


def test_the_least_share_is_of_the_reward_furthest_behind_in_each_seed(tmp_path):
    gains = {"both": (0.4, 0.5), "more": (0.9, 1.1), "only-a": (1.0, 1.0), "only-b": (0.0, 0.0)}
    study = make_study(tmp_path, gains)  # b gains 1 σ everywhere
    for cell in study.cells:
        if cell.name.startswith("only-"):
            own = {f"coefficient/{name}": float(cell.name == f"only-{name}") for name in "ab"}
            row = json.dumps({"step": 1, **own}) + "\n"
            (tmp_path / cell.folder / "metrics.jsonl").write_text(row)
    [part] = study_table(study, tmp_path)["settings"]
    rows = {row["name"]: row["values"] for row in part["rows"] if "values" in row}
    assert rows["both"]["least share"]["mean"] == pytest.approx(0.45)
    assert rows["more"]["least share"]["mean"] == pytest.approx((0.9 + 1.0) / 2)
    assert "least share" not in rows["only-a"]


def test_a_run_without_its_base_is_refused(tmp_path):
    folder = make_run(tmp_path / "r", BASE, moved())
    (folder / "evals.jsonl").write_text((folder / "evals.jsonl").read_text().splitlines()[1])
    with pytest.raises(MarbleError, match="base"):
        measure(folder)


# -- over seeds ----------------------------------------------------------------------------------


def test_t_interval_by_hand():
    found = over_seeds([1.0, 2.0, 3.0])  # t(0.975, 2) = 4.3027, s/√n = 0.57735
    assert found["mean"] == 2.0 and found["n"] == 3
    assert found["hi"] - 2.0 == pytest.approx(2.48414, abs=1e-4)
    assert math.isnan(over_seeds([1.0])["lo"]) and over_seeds([1.0, np.nan])["n"] == 1


def test_paired_difference_takes_common_seeds():
    found = paired({0: 5.0, 1: 6.0, 2: 9.0}, {0: 4.0, 1: 5.0, 3: 0.0})
    assert found == {"mean": 1.0, "lo": 1.0, "hi": 1.0, "n": 2}


def test_agreement_of_seeds():
    alike = {name: {0: v, 1: v + 1, 2: 2 * v} for name, v in (("x", 3.0), ("y", 2.0), ("z", 1.0))}
    found = agreement(alike)
    assert (found["kendall_w"], found["mean_spearman"]) == (1.0, 1.0)
    assert (found["first"], found["first_in"], found["seeds"]) == ("x", 3, 3)
    # Two seeds in opposite order: rank sums all 4, W = 0, Spearman −1.
    against = {"x": {0: 3.0, 1: 1.0}, "y": {0: 2.0, 1: 2.0}, "z": {0: 1.0, 1: 3.0}}
    found = agreement(against)
    assert (found["kendall_w"], found["mean_spearman"]) == (0.0, -1.0)
    assert agreement({"x": {0: 1.0}, "y": {0: 2.0}}) == {}
    assert agreement({**alike, "late": {0: 1.0}}) == {}  # only one seed that all have


# -- a study -------------------------------------------------------------------------------------


def test_rows_ranks_and_the_leader(tmp_path):
    study = make_study(tmp_path, {"low": (0.1, 0.2), "high": (0.5, 0.6), "mid": (0.3, 0.4)})
    [part] = study_table(study, tmp_path)["settings"]
    assert [row["name"] for row in part["rows"]] == ["base", "low", "high", "mid"]
    low = part["rows"][1]
    assert low["values"]["worst gain"]["mean"] == pytest.approx(0.15)
    assert low["scores"]["a"]["mean"] == pytest.approx(1.15)
    assert low["gains"]["b"]["mean"] == pytest.approx(1.0)
    assert low["weights"]["b"]["mean"] == 0.75
    assert part["best"] == "high" and part["ranks"]["worst gain"]["kendall_w"] == 1.0
    assert low["behind"]["worst gain"]["mean"] == pytest.approx(0.4)
    assert low["behind"]["worst gain"]["lo"] > 0
    # Of a, b and h only a differs among the runs, but the base is a row too: both a and b count.
    a = np.array([1.0, 1.1, 1.2, 1.5, 1.6, 1.3, 1.4])
    b = np.array([2.0, 4, 4, 4, 4, 4, 4])
    z = ((a - a.mean()) / a.std() + (b - b.mean()) / b.std()) / 2
    assert low["values"]["composite"]["mean"] == pytest.approx(z[1:3].mean())


def test_settings_are_told_apart(tmp_path):
    study = make_study(tmp_path, {"x": (0.1, 0.2), "y": (0.5, 0.6)}, settings=("one", "two"))
    table = study_table(study, tmp_path)
    assert [part["setting"] for part in table["settings"]] == ["one", "two"]
    assert (tmp_path / "one-x-seed0").is_dir()


def test_what_failed_and_what_is_missing_is_told(tmp_path):
    study = make_study(tmp_path, {"x": (0.1, 0.2), "y": (0.5, None)})
    table = study_table(study, tmp_path, [Failure("y-seed1", "out of memory")])
    assert table["missing"] == ["y-seed1"] and table["settings"][0]["rows"][2]["seeds"] == 1
    text = write_tables(table, tmp_path)[2].read_text()
    assert "3 of 4 runs are finished" in text and "`y-seed1` failed: out of memory" in text


def test_a_study_of_which_nothing_is_done(tmp_path):
    table = study_table(make_study(tmp_path, {"x": (None, None)}), tmp_path)
    assert table["settings"] == []
    assert "0 of 2 runs" in write_tables(table, tmp_path)[2].read_text()


def test_cells_with_other_rewards_need_settings(tmp_path):
    study = make_study(tmp_path, {"x": (0.1,)}, seeds=(0,))
    study.cells.append(Cell("y", 0, ()))
    make_run(tmp_path / "y-seed0", {"a": [0.0, 1.0]}, {"a": [1.0, 2.0]}, rewards=("a",))
    with pytest.raises(MarbleError, match="settings"):
        study_table(study, tmp_path)


def test_files_say_the_same(tmp_path):
    study = make_study(tmp_path, {"low": (0.1, 0.2), "high": (0.5, 0.6), "mid": (0.3, 0.4)})
    paths = write_tables(study_table(study, tmp_path), tmp_path)
    stored = json.loads(paths[0].read_text(), parse_constant=pytest.fail)  # strict JSON
    rows = list(csv.DictReader(paths[1].open()))
    assert [row["name"] for row in rows] == ["base", "low", "high", "mid"]
    assert float(rows[1]["worst gain mean"]) == pytest.approx(0.15)
    assert float(rows[1]["relative gain a mean"]) == pytest.approx(0.15)
    assert rows[0]["worst gain mean"] == ""
    assert stored["settings"][0]["best"] == "high"
    text = Path(paths[2]).read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines[1:4]] == ["| high", "| mid", "| low"]
    assert "| 0.150 ± 0.635 |" in text  # t(0.975, 1)·0.05 = 0.635
    assert "Kendall's W = 1.00" in text and "`high` is first in 2 of 2" in text
    assert "`high` is ahead of `low`, `mid` in worst gain" in text


def test_a_table_of_several_devices_says_so(tmp_path):
    study = make_study(tmp_path, {"x": (0.1, 0.2), "y": (0.3, 0.4)})
    for i, cell in enumerate(study.cells):
        (tmp_path / cell.folder / "environment.json").write_text(
            json.dumps({"device": "cpu" if i else "NVIDIA H200"})
        )
    table = study_table(study, tmp_path)
    assert table["devices"] == {"NVIDIA H200": 1, "cpu": 3}
    assert "4 of 4 runs are finished, on NVIDIA H200 (1) and cpu (3)." in markdown(table)
    table["devices"] = {"cpu": 4}
    assert "4 of 4 runs are finished." in markdown(table)
