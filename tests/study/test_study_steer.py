"""studies/steer.yaml, and the front that scripts/steer_front.py makes of such runs."""

import json
import sys
from pathlib import Path

import pytest

from _toy_world import run_toy
from marble.recipe import load_recipe
from marble.study import load_study

ROOT = Path(__file__).parents[2]
REWARDS = ("reading", "counting", "similarity", "preference", "vivid")


@pytest.mark.parametrize("name", ["steer", "steer-toy"])
def test_the_study_is_one_that_loads_and_is_fair(name):
    study = load_study(ROOT / f"studies/{name}.yaml")
    steps = {
        cell.name: [word for word in cell.overrides if word.startswith("train.steps=")][-1]
        for cell in study.cells
    }
    specialists = [int(v.split("=")[1]) for n, v in steps.items() if n.startswith("only-")]
    assert len(specialists) == 5 and sum(specialists) == int(steps["steer"].split("=")[1])
    assert len([n for n in steps if n.startswith("towards-")]) == 5


@pytest.fixture
def front_script(monkeypatch, capsys):
    """Runs scripts/steer_front.py with these words; what it printed."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import steer_front

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["steer_front.py", *map(str, words)])
        steer_front.main()
        return capsys.readouterr().out

    return run


def test_the_page_has_what_is_stored(front_script, tmp_path):
    """steer_front.py STORED --docs PAGE writes the block; it may not be edited alone."""
    stored = ROOT / "studies/results/steer.json"
    page = (ROOT / "docs/steer.md").read_text()
    (tmp_path / "page.md").write_text(page)
    told = front_script(stored, "--docs", tmp_path / "page.md", "--store", tmp_path / "steer.json")
    assert (tmp_path / "page.md").read_text() == page
    for name in ("steer.json", "steer.md"):
        assert (tmp_path / name).read_text() == (stored.parent / name).read_text(), name
    assert told.strip() in (tmp_path / "steer.md").read_text()


def test_the_block_has_the_shorter_tables_and_the_rest_of_the_page_stays(front_script, tmp_path):
    stored, page = ROOT / "studies/results/steer-toy.json", tmp_path / "page.md"
    page.write_text("before\n<!-- steer front -->\nold\n<!-- end of front -->\nafter\n")
    told = front_script(stored, "--docs", page)
    text = page.read_text()
    assert text.startswith(
        "before\n<!-- steer front -->\nSeeds 3, 4, 5, 6, 7, each on 480 held-out"
    )
    assert text.endswith("\n<!-- end of front -->\nafter\n") and "old" not in text
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| steer |")]
    assert [cell.strip() for cell in rows[0]] == [
        "steer", "41", "9.96 ± 0.97", "140 %", "8.12 ± 0.65", "0.24 ± 0.04", "0.45 ± 0.02",
        "0.94 ± 0.01",
    ]  # fmt: skip
    assert len(rows[1]) == 4 and rows[1][1].count(",") == 4  # least, by seed
    assert "front, setting" in told and "front, setting" not in text
    page.write_text("no block\n")
    with pytest.raises(SystemExit, match="it has no <!-- steer front -->"):
        front_script(stored, "--docs", page)
    assert page.read_text() == "no block\n"


@pytest.mark.parametrize("text", [None, "[]", "{", '{"fronts": 3}'])
def test_what_is_no_front_is_one_line(front_script, tmp_path, text):
    place = tmp_path / "front.json"
    if text is not None:
        place.write_text(text)
    with pytest.raises(SystemExit, match="no such folder" if text is None else "not a FRONT.JSON"):
        front_script(place)


def test_what_is_measured_needs_no_checkpoints(front_script, tmp_path):
    """The records of a study's fronts are enough; what they lack is named."""

    def record(cell, scores, top=None, labels=("default",)):
        points = [
            {"label": label, "weights": None, "scores": scores, "diversity": 0.5}
            for label in labels
        ]
        about = {"name": cell, "cell": cell, "seed": 3, "runs": [], "names": ["a", "b"]}
        (tmp_path / f"front/{cell}.json").write_text(
            json.dumps({**about, "range": top, "points": points})
        )

    (tmp_path / "front").mkdir()
    with pytest.raises(SystemExit, match="no runs with checkpoints"):
        front_script(tmp_path)
    record("base", {"a": [0.0, 1.0], "b": [0.0, 2.0], "apart": [1.0, 3.0]})
    record("marble", {"a": [0.5, 1.5], "b": [0.0, 4.0], "apart": [2.0, 3.0]})
    for name in ("steer-seed3", "only-a-seed3"):
        (tmp_path / name).mkdir()
    told = front_script(tmp_path)
    assert "not in the tables, since not measured: steer-seed3\n" in told
    assert "| marble | 1 | 4.000 |" in told  # (1 + 1)·(1 + 1), from 1 σ below the base
    assert json.loads((tmp_path / "front.json").read_text())["pictures"] == 2


@pytest.mark.slow
def test_a_front_from_runs_in_the_toy_world(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import steer_front

    common = ["model.lora={rank: 8, alpha: 16}", "train.steps=2", "eval.images_per_prompt=2"]
    longer = ["train.steps=12", "train.checkpoint_every=0"]
    run_toy(tmp_path / "steer-seed0", *common, *longer, "balance.method=steer")
    run_toy(tmp_path / "marble-seed0", *common, "balance.method=marble")
    for name in REWARDS:
        own = ["balance.method=single", f"balance.reward={name}", "train.checkpoint_every=1"]
        run_toy(tmp_path / f"only-{name}-seed0", *common, *own)
    weights = [f"rewards.{name}.weight={0.75 if i else 2.0}" for i, name in enumerate(REWARDS)]
    run_toy(tmp_path / "towards-reading-seed0", *common, "balance.method=fixed", *weights)
    words = ["steer_front.py", str(tmp_path), "--device", "cpu", "--distil", "7"]
    monkeypatch.setattr(sys, "argv", words)
    steer_front.main()
    found = json.loads((tmp_path / "front.json").read_text())
    fronts = {row["cell"]: row for row in found["fronts"]}
    assert set(fronts) == {"steer", "marble", "soup", "retrained", "distil"}
    assert set(fronts["steer"]["sliders"]) == set(REWARDS)
    # A soup's pure corner is the specialist itself, and the centre has all weights 1.
    assert len(fronts["soup"]["points"]) == 31
    at_one = fronts["steer"]["points"]
    assert at_one["reading = 1"] == pytest.approx(at_one["default"], abs=1e-6)
    assert fronts["steer"]["hypervolume_low"] > 0
    assert "| steer | 41 |" in capsys.readouterr().out
    # 5 specialists of one step and a student of seven: as many as the steered run's 12.
    student = load_recipe(str(tmp_path / "distil-seed0/config.yaml"))
    assert student.train.steps == 7 and set(student.objective.teachers) == set(REWARDS)
    assert all("step-000001" in folder for folder in student.objective.teachers.values())
    # Cut off and called again, it goes on where it was.
    steered, base = tmp_path / "front/steer-seed0.json", tmp_path / "front/base.json"
    record = json.loads(steered.read_text())
    record["points"][3]["diversity"] = 99.0
    (tmp_path / "front/steer-seed0.part").write_text(json.dumps(record["points"][:5]))
    steered.unlink()
    before = base.stat().st_mtime_ns
    steer_front.main()
    again = json.loads(steered.read_text())["points"]
    assert again == record["points"] and base.stat().st_mtime_ns == before
    # Another machine's seed is added; a seed that is here too is not; other pictures are refused.
    front, there = tmp_path / "front.json", tmp_path / "there.json"
    for row in found["fronts"]:
        row["seed"] = 7
    there.write_text(json.dumps({**found, "seeds": [7]}))
    monkeypatch.setattr(sys, "argv", [*words, "--with", str(there), "--with", str(there)])
    steer_front.main()
    joined = json.loads(front.read_text())
    assert joined["seeds"] == [0, 7] and len(joined["fronts"]) == 10
    there.write_text(json.dumps({**found, "seeds": [7], "pictures": 3}))
    with pytest.raises(SystemExit, match="other held-out pictures"):
        steer_front.main()
    monkeypatch.setattr(sys, "argv", [*words[:-1], "8"])
    with pytest.raises(SystemExit, match="5 specialists cannot share the other 4 of 12"):
        steer_front.main()
