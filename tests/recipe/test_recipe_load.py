import pickle
import subprocess
import sys

import numpy as np
import pytest
import yaml

from marble.errors import RecipeError
from marble.recipe import METHODS, Recipe, list_recipes, load_recipe, recipe_from

MINIMAL = {"data": {"sources": {"a": "p.txt"}}, "rewards": ["one", "two"]}


def write(folder, name, data):
    path = folder / f"{name}.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_loads_and_dumps_back_equal(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.name == name and recipe.description
    dumped = write(tmp_path, "config", recipe.dump())
    assert load_recipe(dumped) == recipe
    there = pickle.loads(pickle.dumps(recipe))  # as another process gets it
    assert there == recipe and type(there) is type(recipe)


def test_there_is_a_studio_recipe_for_every_method():
    methods = {load_recipe(name).balance.method for name in list_recipes() if "studio" in name}
    assert methods == set(METHODS)


def test_loading_needs_no_torch():
    code = (
        "import sys; from marble.recipe import *; [load_recipe(n) for n in list_recipes()]; "
        "import marble.data; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_published_defaults():
    recipe = load_recipe("sd35m-5rewards")
    assert (recipe.data.prompts_per_epoch, recipe.data.images_per_prompt) == (48, 24)
    assert recipe.samples_per_epoch == 1152
    assert recipe.timesteps_per_sample == 24
    assert recipe.optim.lr == 3e-4 and recipe.optim.ema_decay(0) == 0.1
    assert recipe.optim.ema_decay(10_000) == 0.9
    assert recipe.rollout.old_decay.at(100) == pytest.approx(0.1)
    assert recipe.rollout.old_decay.at(10_000) == 0.95
    assert recipe.rewards.names == ["geneval", "ocr", "pickscore", "clipscore", "hpsv2"]


def test_the_published_rule_has_a_name_of_its_own():
    paper = load_recipe("studio", ["balance.method=marble-paper"]).balance
    marble = load_recipe("studio", ["balance.method=marble"]).balance
    published = {"method": "marble-paper", "drop_silent": False, "target": "full"}
    assert paper == marble.model_copy(update=published)
    assert (paper.every, paper.rho, paper.amortise) == (10, 0.7, "paper")
    with pytest.raises(RecipeError, match="as published, with rho"):
        load_recipe("studio", ["balance.method=marble-paper", "balance.rho=0.9"])


def test_delayed_schedule_and_warmup():
    overrides = ["optim.warmup_steps=4", "rollout.old_decay.initial=0"]
    overrides += ["rollout.old_decay={rate: 0.0075, start: 75, cap: 0.999}"]
    recipe = load_recipe("studio", overrides)
    decay = recipe.rollout.old_decay
    assert decay.at(75) == 0 and decay.at(77) == pytest.approx(0.015) and decay.at(999) == 0.999
    lr = recipe.optim.lr
    assert [recipe.optim.lr_at(n, 50) / lr for n in (0, 3, 4, 9, 49)] == [0.2, 0.8, 1, 1, 1]
    falling = {
        name: load_recipe("studio", [*overrides, f"optim.schedule={name}"]).optim
        for name in ("cosine", "linear")
    }
    for optim in falling.values():
        assert [optim.lr_at(n, 54) / lr for n in (0, 3, 4)] == [0.2, 0.8, 1]
        assert optim.lr_at(29, 54) / lr == pytest.approx(0.5)  # half way after the warm-up
        assert 0 < optim.lr_at(53, 54) < 0.03 * lr
    assert falling["linear"].lr_at(14, 54) / lr == pytest.approx(0.8)
    assert falling["cosine"].lr_at(14, 54) / lr == pytest.approx(0.5 * (1 + np.cos(np.pi / 5)))


def test_overrides_of_every_shape():
    recipe = load_recipe(
        "studio-marble",
        [
            "optim.lr=3e-4",
            "train.max_hours=null",
            "rewards.ocr.weight=2.5",
            "rewards.ocr.options.dense=true",
            "rewards.on_error=skip_sample",
            "rewards.heldout=[extra]",
            "rewards.extra.options={k: [1, 2]}",
            "data.sources.general.share=3",
            "balance.priorities={ocr: 2}",
            "model.lora.targets=[attn.to_q]",
            "log.trackers=[]",
            "log.run_name=no",
        ],
    )
    assert recipe.optim.lr == 3e-4 and recipe.train.max_hours is None
    assert recipe.rewards.train[0].weight == 2.5
    assert recipe.rewards.train[0].options == {"engine": "ppocr-rec", "dense": True}
    assert recipe.rewards.on_error == "skip_sample"
    assert recipe.rewards.heldout[0].options == {"k": [1, 2]}
    assert recipe.data.sources["general"].share == 3
    assert recipe.data.sources["general"].path == "studio:general"
    assert recipe.balance.priorities == {"ocr": 2}
    assert recipe.model.lora.targets == ["attn.to_q"] and recipe.model.lora.rank == 32
    assert recipe.log.trackers == [] and recipe.log.run_name == "no"


def test_list_elements_by_number():
    recipe = load_recipe("studio-sequential", ["balance.stages.0.steps=7"])
    assert recipe.balance.stages[0].steps == 7
    with pytest.raises(RecipeError, match="no element of a list of 4"):
        load_recipe("studio-sequential", ["balance.stages.9.steps=7"])


def test_a_custom_reward_joins_in_four_lines(tmp_path):
    text = "extends: studio\nrewards:\n  add:\n    - {name: warm, reward: 'mine:warm'}\n"
    recipe = load_recipe(write(tmp_path, "mine", text))
    assert recipe.rewards.names == [*load_recipe("studio").rewards.names, "warm"]
    assert recipe.rewards.train[-1].reward == "mine:warm"
    assert recipe.name == "mine"


def test_drop_and_add_by_override():
    recipe = load_recipe("studio", ["rewards.drop=[ocr, studio-pick]", "rewards.add=mine"])
    assert recipe.rewards.names == ["studio-geneval", "studio-clip", "studio-aesthetic", "mine"]
    with pytest.raises(RecipeError, match=r"rewards\.drop: no reward called 'x'"):
        load_recipe("studio", ["rewards.drop=[x]"])


def test_inheritance_merges_mappings_and_replaces_lists(tmp_path):
    write(tmp_path, "top", {**MINIMAL, "description": "d", "train": {"steps": 5, "seed": 3}})
    child = write(tmp_path, "child", {"extends": "top.yaml", "train": {"steps": 6}})
    recipe = load_recipe(child, ["rewards.train=[three]"])
    assert (recipe.train.steps, recipe.train.seed) == (6, 3)
    assert recipe.rewards.names == ["three"]
    assert (recipe.name, recipe.description) == ("child", "")


def test_circular_and_missing_parents(tmp_path):
    write(tmp_path, "a", {"extends": "b.yaml"})
    write(tmp_path, "b", {"extends": "a.yaml"})
    with pytest.raises(RecipeError, match="in a circle"):
        load_recipe(tmp_path / "a.yaml")
    with pytest.raises(RecipeError, match="did you mean studio-uniform"):
        load_recipe(write(tmp_path, "c", {"extends": "studio-unifrom"}))


def test_a_run_folder_stands_for_its_recipe(tmp_path):
    recipe = load_recipe("studio-fast")
    write(tmp_path, "config", recipe.dump())
    assert load_recipe(tmp_path) == recipe


def test_recipe_is_immutable():
    recipe = recipe_from(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.steps = 3  # type: ignore[misc]
    assert isinstance(recipe, Recipe)


def test_stages_share_the_steps_that_are_left():
    def starts(stages, steps):
        raw = {
            **MINIMAL,
            "balance": {"method": "sequential", "stages": stages},
            "train": {"steps": steps},
        }
        return [start for start, _ in recipe_from(raw).stages()]

    assert starts([{}, {}, {}], 10) == [0, 3, 6]
    assert starts([{"steps": 4}, {}, {"steps": 2}, {}], 11) == [0, 4, 6, 8]
    assert starts([{"steps": 4}, {"steps": 2}], 100) == [0, 4]


def test_a_run_folder_from_before_an_option_went_still_loads():
    """Resolved recipes name every field, also those that were off."""
    off = {"debias": False, "gradient_ema": 0.0, "metric": "plain", "snr": 0.0}
    words = [f"balance.{key}={str(value).lower()}" for key, value in off.items()]
    old, now = load_recipe("studio", words), load_recipe("studio")
    assert old == now and not off.keys() & old.balance.model_dump().keys()


def test_another_method_does_not_inherit_the_options_of_the_one_before(tmp_path):
    """They are its own; what the new one is given is kept, in any order."""
    assert load_recipe("studio-steer").balance.options
    marble = load_recipe("studio-steer", ["balance.method=marble"])
    assert marble.balance == load_recipe("studio").balance
    child = write(tmp_path, "child", "extends: studio-steer\nbalance: {method: cagrad}\n")
    assert load_recipe(child).balance.options == {}
    for words in (["balance.options.own=0.2", "balance.method=steer"], ["balance.options.own=0.2"]):
        assert load_recipe("studio-steer", words).balance.options["own"] == 0.2
    words = ["balance.options.own=0.2", "balance.method=steer"]
    assert load_recipe("studio", words).balance.options["own"] == 0.2
