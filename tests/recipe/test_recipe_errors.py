"""One clear line for every mistake."""

import pytest

from marble.errors import RecipeError
from marble.recipe import load_recipe, reference

MISTAKES = {
    "trian.steps=3": "trian: unknown key; did you mean train?",
    "train.lr=3": "train.lr: unknown key; it is optim.lr",
    "balance.progress.twins=9": "balance.progress.twins: unknown key; it is now "
    "balance.progress.paired",
    "balance.snr=1": "balance.snr is gone: no measurement spoke for it; leave it out",
    "train.rho=0.5": "did you mean balance.rho?",
    "balance.rhoo=0.5": "balance.rhoo: unknown key; did you mean balance.rho?",
    "balance.weights={ocr: 2}": "it is rewards.NAME.weight",
    "balance.rho=2": "balance.rho: must be < 1, got 2",
    "balance.rho=.nan": "must be a finite number",
    "balance.every=0": "balance.every: must be ≥ 1, got 0",
    "balance.method=marbel": "did you mean marble?",
    "train.steps=abc": "train.steps: must be a whole number, got 'abc'",
    "train.steps=1.5": "train.steps: must be a whole number, got 1.5",
    "train.steps=true": "train.steps: must be a whole number, got True",
    "train.overlap_rewards=1": "must be true or false, got 1",
    "optim.lr=fast": "optim.lr: must be a number, got 'fast'",
    "train=3": "train: must be a mapping",
    "model.path=3": "model.path: must be text, got 3",
    "log.trackers=[comet]": "must be one of tensorboard, wandb, trackio",
    "rewards.ocr.weight=-1": "rewards.ocr.weight: must be ≥ 0, got -1",
    "rewards.ocx.weight=1": "rewards.ocx: no such reward; did you mean ocr?",
    "rewards.ocr.wieght=1": "did you mean rewards.ocr.weight?",
    "rewards.train=[ocr, ocr]": "two rewards are called 'ocr'",
    "rewards.heldout=[ocr]": "two rewards are called 'ocr'",
    "rewards.train=[heldout]": "is a word of the recipe",
    "rewards.train=[]": "name at least one reward",
    "rewards.ocr.sources=[orc]": "no source called 'orc'; known: general, ocr, geneval",
    "rewards.train=[{reward: x}]": "rewards.train.0.name: is required",
    "data.sources.ocr.shre=1": "did you mean data.sources.ocr.share?",
    "data.sources={a b: x}": "'a b' is no name",
    "data.images_per_prompt=1": "data.images_per_prompt: must be at least 2",
    "train.steps_per_epoch=100000": "cannot share",
    "balance.floors=[oc]": "balance.floors: no training reward called 'oc'",
    "balance.priorities={oc: 2}": "balance.priorities: no training reward called 'oc'",
    "balance.groups={g: [oc]}": "balance.groups.g: no training reward called 'oc'",
    "balance.groups={g: [ocr], h: [ocr]}": "'ocr' is in both g and h",
    "balance.method=single": "balance.reward: method single needs one of: ocr",
    "balance.reward=ocr": "is for method single",
    "balance.method=sequential": "balance.stages: method sequential needs stages",
    "balance.stages=[{}]": "is for method sequential",
    "balance.consolidate=1000": "more than train.steps",
    "foo": "an override looks like section.key=value",
    "train.steps=[1": "override train.steps:1: not valid YAML",
    "train={steps: 1, steps: 2}": "key 'steps' appears twice",
    "extends=studio": "name the recipe to start from",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_mistake_gives_one_line(override):
    with pytest.raises(RecipeError) as caught:
        load_recipe("studio-marble", [override])
    assert MISTAKES[override] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "expect"),
    [
        (["balance.method=uniform", "balance.floors=[ocr]"], "needs a Gram-based method"),
        (["balance.method=marble", "rewards.ocr.priority=2"], "use balance.priorities"),
        (["balance.method=uniform", "rewards.ocr.priority=2"], "use weights, with method fixed"),
        (
            ["balance.method=progress", "balance.progress.units=range"],
            "balance.progress.units: is for progress by batch",
        ),
        (
            ["balance.method=progress", "balance.progress.gate=true"],
            "balance.progress.gate: is for progress by batch",
        ),
        (
            ["balance.method=marble", "balance.hybrid=gate", "balance.progress.gate=true"],
            "set progress.paired to 0",
        ),
        (["balance.method=single", "balance.reward=x"], "no training reward called 'x'"),
        (
            ["balance.method=sequential", "balance.stages=[{rewards: [x]}]"],
            "balance.stages.0.rewards: no training reward called 'x'",
        ),
        (
            ["balance.method=sequential", "balance.stages=[{sources: [x]}]"],
            "balance.stages.0.sources: no source called 'x'",
        ),
        (
            ["balance.method=sequential", "balance.stages=[{steps: 9}, {}]", "train.steps=5"],
            "balance.stages.1: begins at step 9",
        ),
        (
            [f"data.sources.{s}.share=0" for s in ("general", "ocr", "geneval")],
            "every share is 0",
        ),
        (["rewards.train=[{name: a, weight: 0}]", "balance.method=fixed"], "weight above 0"),
        (["train.steps=a", "train.seed=b"], "(and 1 more)"),
    ],
)
def test_fields_that_disagree(overrides, expect):
    with pytest.raises(RecipeError) as caught:
        load_recipe("studio", overrides)
    assert expect in str(caught.value)


@pytest.mark.parametrize("setting", ["units=range", "gate=true"])
def test_what_is_for_batch_means_goes_with_batch_means(setting):
    load_recipe("studio", [f"balance.progress.{setting}", "balance.progress.paired=0"])
    # A method that does not look at progress does not mind.
    load_recipe("studio", [f"balance.progress.{setting}", "balance.method=uniform"])


def test_sources_inside_a_jsonl_are_not_second_guessed():
    recipe = load_recipe("studio", ["data.sources.m=mixed.jsonl", "rewards.ocr.sources=[signs]"])
    assert recipe.rewards.train[0].sources == ["signs"]


@pytest.mark.parametrize(
    ("text", "expect"),
    [
        ("", "a recipe is a mapping of sections"),
        ("- 1", "a recipe is a mapping of sections"),
        ("a: [", "bad.yaml:1: not valid YAML"),
        ("extends: [a]", "extends: must be the name or path"),
        ("1: 2", "keys are words"),
    ],
)
def test_bad_files(tmp_path, text, expect):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert expect in str(caught.value)


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(RecipeError, match="did you mean studio-fast"):
        load_recipe("studio-fats")


def test_every_field_is_documented():
    docs = reference()
    assert not [doc.path for doc in docs if not doc.description]
    paths = {doc.path for doc in docs}
    assert {"balance.rho", "rewards.train.*.weight", "data.sources.*.share"} <= paths
    assert {"objective.clip (name: grpo)", "balance.options.c (method: cagrad)"} <= paths
    by_path = {doc.path: doc for doc in docs}
    assert by_path["optim.lr"].default == 3e-4 and by_path["optim.lr"].kind == "number"
    assert by_path["data.sources.*.path"].default == "required"
    assert by_path["model.dtype"].kind == "fp32 | bf16 | fp16"
