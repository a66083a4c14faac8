"""The Stable Diffusion 3.5 Medium recipes are the published one, and differ only where they say."""

import pytest

from marble.errors import RecipeError
from marble.objectives import objective_class
from marble.recipe import list_recipes, load_recipe
from marble.rewards import REGISTRY

NAMES = [name for name in list_recipes() if name.startswith("sd35m-")]


def test_all_are_there():
    assert sorted(NAMES) == [
        "sd35m-5rewards",
        "sd35m-5rewards-1gpu",
        "sd35m-paper",
        "sd35m-sequential",
        "sd35m-single",
        "sd35m-weighted-sum",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_rewards_are_registered_and_train_on_five(name):
    recipe = load_recipe(name)
    every = [*recipe.rewards.train, *recipe.rewards.heldout]
    assert {entry.reward for entry in every} <= set(REGISTRY)
    assert recipe.rewards.names == ["geneval", "ocr", "pickscore", "clipscore", "hpsv2"]
    assert [e.sources for e in recipe.rewards.train] == [["geneval"], ["ocr"], None, None, None]
    assert recipe.rewards.train[0].options["mode"] == "partial"
    assert "geneval-strict" in [e.name for e in recipe.rewards.heldout]


def test_published_settings():
    r = load_recipe("sd35m-paper")
    assert (r.model.resolution, r.model.dtype) == (512, "bf16")
    assert (r.model.lora.rank, r.model.lora.alpha, r.model.lora.init) == (32, 64, "gaussian")
    assert (r.data.prompts_per_epoch, r.data.images_per_prompt) == (48, 24)
    assert list(r.data.sources) == ["general", "ocr", "geneval"]
    assert (r.rollout.steps, r.rollout.sampler, r.rollout.guidance) == (25, "dpm", 1)
    assert (r.eval.steps, r.eval.sampler, r.eval.guidance) == (40, "euler", None)
    assert r.timesteps_per_sample == 24  # 99 % of 25
    assert (r.objective.beta, r.objective.a_max, r.objective.kl) == (0.1, 5, 1e-4)
    assert (r.optim.lr, r.optim.betas, r.optim.weight_decay) == (3e-4, [0.9, 0.999], 1e-4)
    assert (r.optim.grad_clip, r.optim.ema_cap) == (1, 0.9)
    assert (r.balance.method, r.balance.every, r.balance.rho) == ("marble-paper", 10, 0.7)
    assert (r.train.batch_size, r.train.steps_per_epoch) == (9, 1)
    assert (r.balance.probe, r.objective.kl_every) == (1, 1)
    assert r.rollout.old_decay.at(500) == 0.5 and r.rollout.old_decay.at(2000) == 0.95


def differences(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        keys = {*a, *b}
        return {d for k in keys for d in differences(a.get(k), b.get(k), f"{path}{k}.")}
    return set() if a == b else {path.rstrip(".")}


def test_the_default_differs_from_the_published_one_in_the_rule_and_in_what_saves_time():
    ours, paper = (load_recipe(n).model_dump() for n in ("sd35m-5rewards", "sd35m-paper"))
    assert differences(ours, paper) == {
        "name",
        "description",
        "balance.method",
        "balance.target",
        "balance.drop_silent",
        "balance.probe",
        "objective.kl_every",
        "train.batch_size",
    }


def test_the_one_gpu_recipe_differs_only_in_what_saves_memory_or_time():
    one, many = (load_recipe(n).model_dump() for n in ("sd35m-5rewards-1gpu", "sd35m-5rewards"))
    assert differences(one, many) == {
        "name",
        "description",
        "model.offload_encoders",
        "model.gradient_checkpointing",
        "rewards.train",
        "rewards.heldout",
        "train.batch_size",
        "train.timesteps_fraction",
        "train.overlap_rewards",
        "train.checkpoint_every",
        "eval.every",
        "eval.prompts",
    }


@pytest.mark.parametrize("name", ["sd35m-weighted-sum", "sd35m-sequential", "sd35m-single"])
def test_baselines_differ_only_in_the_balance(name):
    other, marble = (load_recipe(n).model_dump() for n in (name, "sd35m-5rewards"))
    changed = {d.split(".")[0] for d in differences(other, marble)}
    assert changed <= {"name", "description", "balance", "data", "rewards"}
    assert ("data" in changed) == (name == "sd35m-single")
    assert ("rewards" in changed) == (name == "sd35m-weighted-sum")


def test_the_summed_rewards_are_on_one_scale():
    """PickScore is about 22 where the others are below 1: the public trainers divide it by 26."""
    summed, marble = (load_recipe(n).rewards for n in ("sd35m-weighted-sum", "sd35m-5rewards"))
    assert summed.names == marble.names and marble.weights == [1] * 5
    assert dict(zip(summed.names, summed.weights)) == {
        **dict.fromkeys(("geneval", "ocr", "clipscore", "hpsv2"), 1),
        "pickscore": pytest.approx(1 / 26, rel=1e-5),
    }
    others = zip(summed.train, marble.train)
    assert all(a.model_copy(update={"weight": 1.0}) == b for a, b in others)


@pytest.mark.parametrize("name", ["awm", "dpo", "grpo"])
def test_another_objective_has_its_own_numbers(tmp_path, name):
    """Of the recipe's, or of a whole run's, what means something else to it is not taken over."""
    words = ["rollout.sampler=sde", "eval.sampler=dpm", "balance.target=full"]
    words += [f"objective.name={name}", "train.batch_size=null"]
    usual = objective_class(name).Options().model_copy(update={"name": name})
    (tmp_path / "config.yaml").write_text(load_recipe("sd35m-paper").dump())
    for recipe in ("sd35m-5rewards", str(tmp_path / "config.yaml")):
        options = load_recipe(recipe, words).objective
        assert options.model_copy(update={"kl_every": usual.kl_every}) == usual
        assert load_recipe(recipe, ["objective.kl=7", *words]).objective.kl == 7


def test_a_misspelt_setting_is_told_whatever_the_objective(tmp_path):
    (tmp_path / "mine.yaml").write_text("extends: studio\nobjective: {betta: 3}\n")
    with pytest.raises(RecipeError, match=r"objective\.betta: unknown key"):
        load_recipe(str(tmp_path / "mine.yaml"), ["objective.name=dpo"])
