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
