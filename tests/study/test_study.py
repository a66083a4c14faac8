"""Study files: those that ship load and hold what they promise; mistakes give one line."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from marble.errors import MarbleError
from marble.recipe import load_recipe
from marble.study import load_study

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_studies_load(path):
    study = load_study(path)
    assert len({cell.folder for cell in study.cells}) == len(study.cells)
    assert all(any(w == f"train.seed={c.seed}" for w in c.overrides) for c in study.cells)


def recipes(name, setting=None):
    """cell → recipe of a shipped study, for its first seed."""
    study = load_study(STUDIES / f"{name}.yaml")
    first = study.cells[0].seed
    chosen = [c for c in study.cells if c.seed == first and setting in (None, c.setting)]
    assert chosen
    return {c.name: load_recipe(study.recipe, list(c.overrides)) for c in chosen}


def test_the_paper_study_has_all_of_the_paper():
    """Its ablations here; specialists and training one after the other in `regime`."""
    for name in ("paper", "regime"):
        assert len({c.seed for c in load_study(STUDIES / f"{name}.yaml").cells}) >= 3
    cells = recipes("regime") | recipes("paper")
    assert len({(r.train.steps, r.samples_per_epoch) for r in cells.values()}) == 1
    balances = [recipe.balance for recipe in cells.values()]
    singles = {b.reward for b in balances if b.method == "single"}
    assert singles == set(cells["marble"].rewards.names)
    methods = {b.method for b in balances}
    assert methods >= {"weighted_sum", "dropout", "sequential", "gdpo", "uniform", "mgda"}
    weights = cells["weights-1-1-1-2-2"].rewards.weights
    assert sorted(weights) == [1, 1, 1, 2, 2]
    published = [b for b in balances if b.method == "marble"]
    assert {b.every for b in published} >= {1, 5, 10, 20}
    assert {b.rho for b in published} >= {0, 0.1, 0.3, 0.5, 0.7, 0.9}
    assert {b.amortise for b in published} == {"paper", "normalised"}
    assert any(b.consolidate for b in published) and any(not b.masks for b in published)


@pytest.mark.parametrize("name", ["paper", "regime", "stress"])
def test_the_studies_prefer_no_reward_and_no_source(name):
    recipe = load_recipe(load_study(STUDIES / f"{name}.yaml").recipe)
    assert {reward.priority for reward in recipe.rewards.train} == {1}
    assert {source.share for source in recipe.data.sources.values()} == {1}


def test_a_study_reaches_from_2_to_32_rewards():
    study = load_study(STUDIES / "odd-toy.yaml")
    counts = {}
    for cell in study.cells:
        if cell.name == "uniform" and cell.setting not in counts:
            rewards = load_recipe(study.recipe, list(cell.overrides)).rewards
            counts[cell.setting] = len(rewards.train)
            assert set(study.judge) & set(rewards.names)
    assert list(counts) == study.settings
    assert (min(counts.values()), max(counts.values())) == (2, 32)


def test_stress_has_a_reward_and_its_opposite_and_is_judged_without_it():
    cells = recipes("stress", "opposed")
    assert set(cells) == {"marble", "gdpo", "uniform", "marble-paper"}
    judged = load_study(STUDIES / "stress.yaml").judge
    for recipe in cells.values():
        [added] = [r for r in recipe.rewards.train if r.name not in judged]
        assert (added.options["reward"], added.options["scale"]) == ("studio-clip", -1)
        assert "studio-clip" in recipe.rewards.names


def test_the_cliff_is_looked_for_with_the_trust_region_and_without():
    shipped = load_recipe("studio")
    without, within = recipes("cliff", "open-96"), recipes("cliff", "within-96")
    assert list(without) == list(within)
    assert {(r.rollout.old_decay.initial, r.rollout.old_decay.rate) for r in without.values()} == {
        (0, 0)
    }
    for recipe in within.values():
        assert recipe.rollout.old_decay == shipped.rollout.old_decay
        assert (recipe.optim, recipe.model.lora) == (shipped.optim, shipped.model.lora)
        assert recipe.train.steps >= 5 * shipped.train.steps


@pytest.mark.parametrize("name", ["paper", "regime"])
def test_every_cell_can_be_balanced(name):
    """What a recipe cannot know is found out when its Balancer is made: here, not in a study."""
    from marble.study.toy.model import ToyAdapter
    from marble.training.setup import build_balancer

    adapter = ToyAdapter()
    adapter.add_lora(2, 4)
    for recipe in recipes(name).values():
        if recipe.balance.progress.units == "std":  # ranges would load every reward
            model = SimpleNamespace(transformer=adapter.transformer, sliders=None)
            assert build_balancer(recipe, model).names == recipe.rewards.names


def test_settings_of_a_cell_come_after_the_common_ones(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "common: {balance.method: marble, optim.lr: 0.001}\nseeds: [3]\n"
        "cells: {a: {balance.method: uniform, model.lora.targets: [attn.to_q]}}"
    )
    [cell] = load_study(file).cells
    assert cell.folder == "a-seed3"
    assert "balance.method=uniform" in cell.overrides and "optim.lr=0.001" in cell.overrides
    assert "model.lora.targets=[attn.to_q]" in cell.overrides


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cells: [a]", "needs `cells`"),
        ("cells: {}", "needs `cells`"),
        ("cells: {a: {}}\nseed: 1", "unknown key seed; did you mean seeds"),
        ("cells: {a: {balance.methd: marble}}", "cell a"),
        ("cells: {a: [", "not valid YAML"),
        ("cells: {a: {}}\nseeds: 3", "list of whole numbers"),
        ("cells: {a: {}}\njudge: [nobody]", "no cell trains on nobody"),
        ("cells: {a: {}}\nshow: [b]", "there is no cell b"),
        ("cells: {a: {}}\ntrainer: other", "choose one of marble, toy"),
        ("cells: {a: {}}\nsettings: {s: {optim.lrr: 1}}", "setting s, cell a"),
        ("cells: {a: {}}\nsettings: true\nfewer: {s: [0]}", "settings: "),
        ("cells: {a: uniform}", "mapping of name to overrides"),
    ],
)
def test_mistakes_are_one_error(tmp_path, text, said):
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(MarbleError, match=said):
        load_study(file)


def test_a_missing_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("cells: {a: {}}")
    with pytest.raises(MarbleError, match=r"no such study file; did you mean .*mine\.yaml\?"):
        load_study(tmp_path / "mine.yml")
    with pytest.raises(MarbleError, match="no such study"):
        load_study(tmp_path / "none.yaml")


def test_settings_times_cells_times_seeds(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(
        "common: {train.steps: 9}\nseeds: [0, 1]\n"
        "settings: {x: {optim.lr: 0.1, train.steps: 8}, y: }\n"
        "cells: {a: {optim.lr: 0.2}, b: }"
    )
    study = load_study(file)
    assert study.settings == ["x", "y"] and study.names == ["a", "b"] and len(study.cells) == 8
    first = study.cells[0]
    assert first.folder == "x-a-seed0"
    assert "optim.lr=0.2" in first.overrides and "train.steps=8" in first.overrides
