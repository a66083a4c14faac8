"""Runs made elsewhere count as done, with the same table, and only under the same settings."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from _study_runs import BASE, make_run, moved

from marble.errors import MarbleError
from marble.study import Cell, Study, finished_runs, load_study, run_study, table_of
from marble.study.elsewhere import load, store
from marble.study.write import to_json


@pytest.fixture
def study(tmp_path):
    cells = [Cell(name, seed, (f"train.seed={seed}",)) for name in "xy" for seed in (0, 1)]
    for cell in cells:
        gain = 0.3 if cell.name == "x" else 0.1
        harmony = [{"harmony/min_cos": 0.1 - cell.seed}]
        make_run(tmp_path / cell.folder, BASE, moved(gain, gain + cell.seed / 7), harmony=harmony)
    return Study("mine", "A study.", "studio", cells)


def test_the_table_is_the_same_to_the_last_digit(tmp_path, study):
    here = finished_runs(study, tmp_path)
    kept = store(study, here, tmp_path / "runs.json")
    there = load([study], [kept])["mine"]
    assert list(there) == study.cells
    assert to_json(table_of(study, there)) == to_json(table_of(study, here))
    for cell in study.cells:
        assert repr(there[cell]) == repr(here[cell])  # NaN where it was NaN


def test_only_the_others_are_run(tmp_path, study):
    kept = store(study, finished_runs(study, tmp_path), tmp_path / "runs.json")
    wider = replace(study, cells=[*study.cells, Cell("z", 0, ("train.seed=0",))])
    known, said = load([wider], [kept]), []
    with pytest.MonkeyPatch.context() as patch:
        ran = []
        patch.setattr("marble.study.runner._run", lambda study, cell, *_: ran.append(cell.folder))
        run_study(wider, tmp_path / "new", elsewhere=known, say=said.append)
    assert ran == ["z-seed0"]
    assert said[0] == "mine: 5 runs, 4 done already"
    runs = finished_runs(wider, tmp_path / "new", known["mine"])
    assert table_of(wider, runs)["missing"] == ["z-seed0"]


def test_a_run_made_here_goes_before_one_made_elsewhere(tmp_path, study):
    kept = store(study, finished_runs(study, tmp_path), tmp_path / "runs.json")
    data = json.loads(kept.read_text())
    for run in data["runs"].values():
        run["device"] = "elsewhere"
    kept.write_text(json.dumps(data))
    known = load([study], [kept])["mine"]
    assert {run.device for run in known.values()} == {"elsewhere"}
    assert finished_runs(study, tmp_path, known) == finished_runs(study, tmp_path)


def change(kept, **changes):
    data = json.loads(kept.read_text())
    for at, value in changes.items():
        part = data
        *path, last = at.split("__")
        for key in path:
            part = part[key]
        part[last] = value
    kept.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"study": "yours"}, "has runs of yours, not of mine"),
        ({"judge": ["a"]}, "judged by other rewards"),
        ({"recipe__optim.lr": 7.0}, "its runs had optim.lr=7.0"),
        ({"runs__x-seed0__overrides": ["train.seed=4"]}, "x-seed0 was run with other settings"),
        ({"runs": []}, "not the runs.json"),
        ({"runs__x-seed0": 3}, "x-seed0 is damaged"),
        ({"runs__x-seed0__curve": {"a": [1]}}, "x-seed0 is damaged"),
    ],
)
def test_other_settings_are_refused(tmp_path, study, changes, told):
    kept = store(study, finished_runs(study, tmp_path), tmp_path / "runs.json")
    change(kept, **changes)
    with pytest.raises(MarbleError, match=told):
        load([study], [kept])


def test_settings_added_since_do_not_matter(tmp_path, study):
    kept = store(study, finished_runs(study, tmp_path), tmp_path / "runs.json")
    data = json.loads(kept.read_text())
    del data["recipe"]["optim.lr"]  # as if it had not been there
    data["recipe"]["optim.gone"] = 1  # removed since
    data["runs"]["w-seed0"] = data["runs"]["x-seed0"]  # a cell that was removed
    kept.write_text(json.dumps(data))
    assert list(load([study], [kept])["mine"]) == study.cells


def test_the_order_of_overrides_does_not_matter(tmp_path, study):
    """A study that moves one from `common` into its settings has the same runs."""
    words = ("optim.lr=1e-4", "train.seed=0", "train.steps=9")
    first = replace(study.cells[0], overrides=words)
    study = replace(study, cells=[first, *study.cells[1:]])
    kept = store(study, finished_runs(study, tmp_path), tmp_path / "runs.json")
    moved_last = replace(first, overrides=(*words[1:], words[0]))
    now = replace(study, cells=[moved_last, *study.cells[1:]])
    assert list(load([now], [kept])["mine"]) == now.cells
    for other in (words[:2], (*words[:2], "train.steps=8"), (*words, "train.steps=9")):
        cell = replace(first, overrides=other)
        with pytest.raises(MarbleError, match="x-seed0 was run with other settings"):
            load([replace(study, cells=[cell, *study.cells[1:]])], [kept])


def test_what_every_run_sets_itself_may_change_in_the_recipe(tmp_path, study):
    """Of one run that leaves it to the recipe, it may not."""
    kept = store(study, finished_runs(study, tmp_path), tmp_path / "runs.json")
    change(kept, **{"recipe__train.seed": 77})
    assert list(load([study], [kept])["mine"]) == study.cells
    cell = replace(study.cells[0], overrides=("optim.lr=1e-4",))
    change(kept, **{"runs__x-seed0__overrides": ["optim.lr=1e-4"]})
    with pytest.raises(MarbleError, match=r"its runs had train\.seed=77"):
        load([replace(study, cells=[cell, *study.cells[1:]])], [kept])


RESULTS = Path(__file__).parents[2] / "studies/results"


@pytest.mark.parametrize("kept", sorted(RESULTS.glob("*.runs.json")), ids=lambda path: path.name)
def test_stored_runs_are_those_of_their_study(kept):
    study = load_study(RESULTS.parent / kept.name.replace(".runs.json", ".yaml"))
    assert load([study], [kept])[study.name]


@pytest.mark.parametrize("text", [None, "", "[1]", '{"study": "mine"}'])
def test_a_damaged_file_is_told_in_one_line(tmp_path, study, text):
    file = tmp_path / "runs.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(MarbleError) as error:
        load([study], [file])
    assert str(file) in str(error.value) and "\n" not in str(error.value)


def test_the_command_makes_a_table_without_any_run_here(tmp_path, capsys):
    """Of a file that was carried over, and stores all of it again."""
    from marble.cli.study import study as command

    file = tmp_path / "mine.yaml"
    file.write_text("seeds: [0, 1]\ncells: {x: {}, y: {}}")
    plan = load_study(file)
    for cell in plan.cells:
        make_run(tmp_path / "there" / cell.folder, BASE, moved(0.1, 0.2))
    kept = store(plan, finished_runs(plan, tmp_path / "there"), tmp_path / "runs.json")
    command([file], out=tmp_path / "here", elsewhere=[kept], run=False)
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    assert (tmp_path / "here" / "runs.json").read_text() == kept.read_text()
    assert not (tmp_path / "here" / "report.html").exists()  # pictures did not travel
