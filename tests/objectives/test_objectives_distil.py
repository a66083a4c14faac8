"""Distillation: the loss against its formula, who teaches which prompt, and what is refused."""

import pytest
import torch

from marble.data import Prompt, Sample
from marble.errors import MarbleError, RecipeError
from marble.objectives import Point, objective_class
from marble.recipe import load_recipe

Distil = objective_class("distil")
NAMES = ["ocr", "studio-geneval", "studio-clip", "studio-pick", "studio-aesthetic"]
NARROW = [True, True, False, False, False]
TEACHERS = {name: f"runs/{name}" for name in NAMES}


def test_the_loss_is_the_formula_and_its_gradient_that_of_autograd():
    g = torch.Generator().manual_seed(0)
    v, teacher, x = torch.randn(3, 5, 2, 3, generator=g).double()
    point = Point(x, torch.rand(5, generator=g).double(), x, v_teacher=teacher)
    leaf = v.clone().requires_grad_()
    plus, minus = Distil().sides(leaf, point)
    expected = [sum((float(a) - float(b)) ** 2 for a, b in zip(one, other)) / 6
                for one, other in zip(v.flatten(1), teacher.flatten(1))]  # fmt: skip
    assert plus.tolist() == pytest.approx(expected, rel=1e-12) and minus is None
    plus.sum().backward()
    found, none = Distil().cotangents(v, point)
    torch.testing.assert_close(found, leaf.grad, rtol=1e-12, atol=0)
    assert none is None
    low = Distil().sides(v.bfloat16(), point)[0]
    assert low.dtype == torch.float32
    with pytest.raises(MarbleError, match="no v_teacher"):
        Distil().sides(v, Point(x, point.t_B, x))


def samples(sources, each=3):
    return [
        Sample(Prompt(f"prompt {g}", source, {}), g, 100 * g + i, g * each + i)
        for g, source in enumerate(sources)
        for i in range(each)
    ]


def asked(sources, *, teachers=TEACHERS, seed=3, failed=()):
    drawn = samples(sources)
    adv = torch.zeros(5, len(drawn)).double()
    for i, sample in enumerate(drawn):
        for k, source in ((0, "ocr"), (1, "geneval")):
            if sample.prompt.source != source:
                adv[k, i] = torch.nan
        for k in failed:
            adv[k, i] = torch.nan
    objective = Distil(teachers=teachers)
    found = objective.asked(adv, drawn, names=NAMES, narrow_K=NARROW, seed=seed)
    a, b = objective.weights(found)
    assert torch.equal(a.isnan(), found.isnan()) and (b[~b.isnan()] == 0).all()
    assert (a[~a.isnan()] == 1).all()
    return found


def teacher_by_group(found, each=3):
    valid = ~found.isnan()
    assert (valid.sum(0) <= 1).all()
    groups = [
        {tuple(column.tolist()) for column in valid[:, g : g + each].T}
        for g in range(0, valid.shape[1], each)
    ]
    assert all(len(group) == 1 for group in groups)
    return [next(iter(group)).index(True) if any(next(iter(group))) else None for group in groups]


def test_a_prompt_is_taught_by_the_reward_it_is_for():
    chosen = teacher_by_group(asked(["ocr", "geneval", "general"] * 40))
    assert set(chosen[0::3]) == {0} and set(chosen[1::3]) == {1}
    # Prompts of no particular reward have each of the others about equally often.
    general = [chosen.count(k) for k in (2, 3, 4)]
    assert sum(general) == 40 and min(general) >= 6
    assert chosen == teacher_by_group(asked(["ocr", "geneval", "general"] * 40))
    assert chosen != teacher_by_group(asked(["ocr", "geneval", "general"] * 40, seed=4))


def test_who_has_no_teacher_or_no_score_teaches_nothing():
    pick = {"studio-pick": "runs/pick"}
    assert teacher_by_group(asked(["ocr", "general"], teachers=pick)) == [3, 3]
    assert teacher_by_group(asked(["ocr", "general"], failed=[0, 2, 3])) == [4, 4]
    assert teacher_by_group(asked(["general"], failed=range(5))) == [None]


def words(teachers):
    given = ", ".join(f"{name}: {path}" for name, path in teachers.items())
    return ["objective.name=distil", f"objective.teachers={{{given}}}"]


@pytest.mark.parametrize(
    ("teachers", "more", "said"),
    [
        ({}, [], r"objective\.teachers: reward 'ocr' has none; give its specialist"),
        ({"ocr": "a"}, [], r"reward 'studio-geneval' has none"),
        ({**TEACHERS, "other": "b"}, [], r"no training reward called 'other'"),
        (TEACHERS, ["train.fsdp=true"], r"train\.fsdp: with objective distil"),
        (TEACHERS, ["balance.target=reward"], r"balance\.target: reward splits off"),
    ],
)
def test_what_cannot_be_distilled_is_refused(teachers, more, said):
    with pytest.raises(RecipeError, match=said) as error:
        load_recipe("studio", [*words(teachers), *more])
    assert "\n" not in str(error.value)


def test_a_single_reward_needs_its_own_teacher_alone_and_paths_are_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    single = ["balance.method=single", "balance.reward=studio-pick"]
    recipe = load_recipe("studio", [*words({"studio-pick": "runs/pick"}), *single])
    assert recipe.objective.teachers == {"studio-pick": str(tmp_path / "runs/pick")}
    assert recipe.objective.kl == 0
