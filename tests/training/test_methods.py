"""Every way of combining rewards runs on the same loop, and one table holds them all."""

import json

import pytest
from rich.console import Console

from marble.evaluation import compare_table
from marble.recipe import METHODS, list_recipes, load_recipe
from marble.training import setup
from marble.training.run import train

STUDIO = [  # without studio-gpu, whose priorities are for rewards that the toy has not
    name
    for name in list_recipes()
    if name.startswith("studio")
    and load_recipe(name).objective.name == "nft"
    and not load_recipe(name).balance.priorities
]
QUICK = [
    "model.lora={rank: 2, alpha: 4}",
    "data.prompts_per_epoch=2",
    "data.images_per_prompt=3",
    "rollout.steps=2",
    "train.steps=2",
    "train.batch_size=6",
    "train.timesteps_fraction=0.5",
    "eval.every=0",
    "eval.prompts=1",
    "log.samples_every=0",
]
OWN = {
    "studio-steer": ["model.lora={rank: 4, alpha: 8}"],  # a rank for every reward, one for all
    "studio-single": ["balance.reward=dark"],
    "studio-sequential": ["balance.stages=[{rewards: [red], sources: [general]}, {steps: 1}]"],
}


def test_there_is_a_recipe_for_every_method():
    methods = {load_recipe(name).balance.method for name in STUDIO}
    assert methods == set(METHODS)


@pytest.fixture(scope="module")
def runs(toy, tmp_path_factory):
    """A run of each method, two steps on the toy."""
    folder = tmp_path_factory.mktemp("methods")
    done = {}
    for name in STUDIO:
        recipe = toy.recipe(*QUICK, *OWN.get(name, []), base=name)
        if recipe.balance.method in {one.balance.method for one, _ in done.values()}:
            continue
        path = folder / recipe.balance.method
        outcome = train(recipe, path, device="cpu", console=Console(quiet=True))
        assert outcome.finished and outcome.step == 2
        done[recipe.balance.method] = recipe, path
    return {method: path for method, (_, path) in done.items()}


def rows_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_every_method_takes_its_steps(runs):
    assert set(runs) == set(METHODS)
    for method, path in runs.items():
        rows = rows_of(path)
        assert [row["step"] for row in rows] == [1, 2], method
        for row in rows:
            assert row["loss"] > 0 and row["grad_norm/update"] > 0, method
            assert row["skipped"] == 0, method


def test_the_gates_let_the_right_rewards_through(runs):
    single = rows_of(runs["single"])[0]
    assert single["coefficient/dark"] > 0 == single["coefficient/red"]
    first, second = rows_of(runs["sequential"])
    assert first["coefficient/red"] > 0 == first["coefficient/dark"]
    assert second["coefficient/dark"] > 0


def test_one_table_for_all(runs):
    table = compare_table(list(runs.values()))
    assert table["metrics"] == ["red", "blue", "dark"]
    assert [row["name"] for row in table["rows"]] == ["base", *runs]
    for row in table["rows"][1:]:
        assert row["method"] == row["name"]
        assert isinstance(row["composite"], float)
        assert row["scores"]["dark"]["mean"] is not None
        assert row["harmony"]["harmony"]["n"] >= 1, row["name"]
    json.dumps(table)


@pytest.fixture(scope="module")
def loaded_once():
    """Rewards keep no state between runs, and loading them takes longer than these runs do."""
    known = {}
    honest = setup.load_reward

    def load(name, **options):
        key = name, repr(sorted(options.items()))
        if key not in known:
            known[key] = honest(name, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "load_reward", load)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_studio_fast_with_every_method(method, loaded_once, tmp_path):
    """The real studio model and its rewards, as shipped; about 5 s per method on a free core."""
    own = {
        "single": ["balance.reward=ocr"],
        "sequential": ["balance.stages=[{rewards: [ocr], sources: [ocr]}, {}]"],
        "marble-paper": ["balance.every=10"],  # as published
        "steer": ["model.lora={rank: 8, alpha: 16}"],  # a rank for every reward, some for all
    }
    overrides = [f"balance.method={method}", *own.get(method, [])]
    recipe = load_recipe("studio-fast", overrides)
    outcome = train(recipe, tmp_path / method, device="cpu", console=Console(quiet=True))
    assert outcome.finished
    (_, row) = compare_table([tmp_path / method])["rows"]
    heldout = [reward.name for reward in recipe.rewards.heldout]
    assert set(row["gains"]) == {*recipe.rewards.names, *heldout}
