"""Cells over several settings: means, the least, and who is behind whom."""

import numpy as np
import pytest
from _study_runs import BASE, make_run, moved
from scipy import stats

from marble.errors import MarbleError
from marble.study import Cell, Study, study_table
from marble.study.across import across
from marble.study.docs import publish
from marble.study.plan import load_study

SEEDS = (3, 4, 5)
VALUES = {
    "calm": {"even": (0.2, 0.3, 0.25), "bold": (0.5, 0.5, 0.6)},
    "rough": {"even": (0.1, 0.2, 0.15), "bold": (-0.3, 0.1, -0.2)},
}

FIRST = {"calm": ("bold", "even"), "rough": ("even", "bold")}


def by_seed(values):
    return {s: {n: dict(zip(SEEDS, v)) for n, v in cells.items()} for s, cells in values.items()}


def half_width(values):
    return stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)


def test_mean_and_least_over_settings_are_taken_seed_by_seed():
    found = across(by_seed(VALUES))
    assert found["settings"] == ["calm", "rough"] and found["seeds"] == [3, 4, 5]
    assert found["best"] == {"mean": "even", "least": "even"}
    even, bold = found["rows"]
    means = np.mean([VALUES["calm"]["bold"], VALUES["rough"]["bold"]], axis=0)
    least = np.minimum(VALUES["calm"]["bold"], VALUES["rough"]["bold"])
    for kind, values in (("mean", means), ("least", least)):
        assert bold[kind]["mean"] == pytest.approx(values.mean())
        assert bold[kind]["hi"] - bold[kind]["mean"] == pytest.approx(half_width(values))
    # Paired: what one seed gives to both cancels.
    gap = np.array([0.1, 0.2, 0.15]) - least
    assert bold["least behind"]["mean"] == pytest.approx(gap.mean())
    assert bold["least behind"]["hi"] - gap.mean() == pytest.approx(half_width(gap))
    assert "least behind" not in even


def test_a_setting_that_is_not_run_in_full_is_left_out():
    values = by_seed(VALUES)
    values["begun"] = {"even": {3: 0.9}}
    values["short"] = {name: {3: 0.9, 4: 0.9} for name in ("even", "bold")}
    assert across(values)["settings"] == ["calm", "rough"]
    assert across({"calm": values["calm"], "begun": values["begun"]}) == {}
    assert across({}) == {}


def test_seeds_that_one_setting_lacks_do_not_count():
    values = by_seed(VALUES)
    for setting in values:
        for seeds in values[setting].values():
            seeds[6] = 0.3
    values["rough"]["bold"][6] = float("nan")
    assert across(values)["seeds"] == [3, 4, 5]


def test_settings_with_fewer_seeds_are_left_out_where_that_leaves_more_runs():
    values = {
        setting: {name: {seed: 0.1 * seed for seed in range(n)} for name in ("even", "bold")}
        for setting, n in {"a": 6, "b": 6, "c": 6, "d": 3}.items()
    }
    found = across(values)
    assert found["settings"] == ["a", "b", "c"] and found["seeds"] == list(range(6))
    assert across(values, widest=True)["settings"] == list("abcd")
    assert across(values, widest=True)["seeds"] == [0, 1, 2]
    more = {name: values["d"] for name in ("e", "f")}  # 3 × 6 and 6 × 3: more seeds tell more
    assert across(values | more)["settings"] == ["a", "b", "c"]
    values |= more | {"g": values["d"]}  # 3 × 6 against 7 × 3
    found = across(values)
    assert found["settings"] == list("abcdefg") and found["seeds"] == [0, 1, 2]


def test_the_page_tells_of_it(tmp_path):
    cells = [Cell(n, s, (), where) for where in VALUES for n in ("even", "bold") for s in SEEDS]
    for setting, names in VALUES.items():
        for name, gains in names.items():
            for seed, gain in zip(SEEDS, gains):
                folder = tmp_path / f"{setting}-{name}-seed{seed}"
                make_run(folder, BASE, moved(a=gain, b=2.0))
    page = tmp_path / "page.md"
    page.write_text("<!-- study: mine -->\n<!-- end of study -->\n")
    table = study_table(Study("mine", "A study.", "studio", cells), tmp_path)
    publish(table, page, tmp_path / "results")
    text = page.read_text()
    assert "| | calm | rough | mean of 2 | least of 2 | *all rewards' mean* |" in text
    assert "| even | 0.25 ± 0.12 | **0.15 ± 0.12** | **0.20 ± 0.12** | **0.15 ± 0.12** |" in text
    # b has moved by 2, which is one standard deviation of the base.
    both = np.mean([[(a + 1.0) / 2 for a in VALUES[s]["even"]] for s in VALUES], axis=0)
    assert f"| **{both.mean():.2f} ± {half_width(both):.2f}** |" in text
    assert "in each method's worst setting, `even` is ahead of `bold` by" in text
    assert text.count("| | calm | rough |") == 2  # once more for the composite
    gaps = [np.subtract(*(VALUES[where][n] for n in best)) for where, best in FIRST.items()]
    clear = [gap.mean() > half_width(gap) for gap in gaps]
    assert clear == [True, False]  # or this would show one case only
    assert "clear of 0: `bold` in *calm* (all others), `even` in *rough* (0 of 1)." in text


def test_both_ways_of_pooling_are_told_where_they_differ(tmp_path):
    values = {"a": range(6), "b": range(6), "c": range(3)}
    cells = [Cell(n, s, (), where) for where in values for n in "xy" for s in values[where]]
    for cell in cells:
        gain = 0.1 * cell.seed + (cell.name == "x")
        make_run(tmp_path / cell.folder, BASE, moved(a=gain, b=4.0))
    page = tmp_path / "page.md"
    page.write_text("<!-- study: mine -->\n<!-- end of study -->\n")
    publish(
        study_table(Study("mine", "A study.", "studio", cells), tmp_path),
        page,
        tmp_path / "results",
    )
    text = page.read_text()
    assert "Over a, b (6 seeds), paired by seed:" in text
    assert "Over a, b, c (3 seeds), paired by seed:" in text
    assert "mean of 2" in text and "| | a | b |\n" in text  # the composite of these alone


def test_a_cell_may_be_left_out_of_a_setting(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "cells: {a: {}, b: {}}\nsettings: {one: {}, two: {}}\nseeds: [0, 1]\nwithout: {two: [b]}"
    )
    names = [cell.folder for cell in load_study(file).cells]
    assert names.count("two-a-seed0") == 1 and "one-b-seed1" in names
    assert not any(name.startswith("two-b") for name in names)


def test_names_may_be_numbers(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "cells: {1: {}, 2: {}}\nsettings: {7: {}, 8: {}}\nseeds: [0, 1]\n"
        "without: {8: [2]}\nfewer: {8: [1]}"
    )
    names = [cell.folder for cell in load_study(file).cells]
    assert names == ["7-1-seed0", "7-1-seed1", "7-2-seed0", "7-2-seed1", "8-1-seed1"]


def test_a_setting_may_have_fewer_seeds(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "cells: {a: {}}\nsettings: {one: {}, two: {}}\nseeds: [0, 1]\nfewer: {two: [1]}"
    )
    names = [cell.folder for cell in load_study(file).cells]
    assert names == ["one-a-seed0", "one-a-seed1", "two-a-seed1"]


def test_a_cell_may_have_fewer_seeds(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "cells: {a: {}, b: {}}\nsettings: {one: {}, two: {}}\nseeds: [0, 1, 2]\n"
        "fewer: {two: [0, 1], b: [1, 2]}"
    )
    names = [cell.folder for cell in load_study(file).cells]
    assert names == [
        "one-a-seed0", "one-a-seed1", "one-a-seed2", "one-b-seed1", "one-b-seed2",
        "two-a-seed0", "two-a-seed1", "two-b-seed1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("without: [b]", "mapping of setting"),
        ("without: {two: b}", "mapping of setting"),
        ("without: {three: [b]}", "no setting three"),
        ("without: {two: [c]}", "no cell c"),
        ("fewer: [1]", "fewer: give a mapping of setting"),
        ("fewer: {three: [1]}", "no setting or cell three"),
        ("fewer: {two: [a]}", "fewer: two: give a list of whole numbers"),
        ("fewer: {two: []}", "fewer: two: give a list of whole numbers"),
        ("fewer: {two: [7]}", "fewer: two: .* are not all among the seeds"),
    ],
)
def test_mistakes_in_it_are_told(tmp_path, line, said):
    file = tmp_path / "s.yaml"
    file.write_text(f"cells: {{a: {{}}, b: {{}}}}\nsettings: {{one: {{}}, two: {{}}}}\n{line}")
    with pytest.raises(MarbleError, match=said):
        load_study(file)
