"""Distillation in the loop: teachers beside the student, its gradient, resume, every method."""

import numpy as np
import pytest
import torch
from _survive import run_here
from _training_toy import randomise

from marble.errors import MarbleError
from marble.harmonise import RULES
from marble.models import lora
from marble.objectives import Point
from marble.training import setup
from marble.training.teachers import taught_velocity

NAMES = ("red", "blue", "dark")


@pytest.fixture(scope="module")
def teachers(toy, tmp_path_factory):
    """Three LoRAs of the tiny model that differ, one of them of another rank."""
    folder, recipe = tmp_path_factory.mktemp("teachers"), toy.recipe()
    adapter = setup.build_adapter(recipe, torch.device("cpu"))
    adapter.add_lora(2, 4)
    for seed, name in enumerate(NAMES):
        randomise(adapter, seed=10 + seed)
        adapter.save_lora(folder / name)
    other = setup.build_adapter(recipe, torch.device("cpu"))
    other.add_lora(3, 9)
    randomise(other, seed=20)
    other.save_lora(folder / "dark")
    return folder


def words(teachers, names=NAMES):
    given = ", ".join(f"{name}: '{teachers / name}'" for name in names)
    more = ["rewards.blue.sources=[ocr]", "data.prompts_per_epoch=6"]
    return ["objective.name=distil", f"objective.teachers={{{given}}}", *more]


def taught_by(run, epoch):
    valid = epoch.batch.adv.valid_KN
    assert (valid.sum(0) == 1).all()
    return [NAMES[k] for k in valid.int().argmax(0).tolist()]


@pytest.mark.parametrize("step", [0, 1], ids=["K gradients recorded", "one backward"])
def test_gradient_is_that_of_matching_each_samples_teacher(trainer, teachers, step):
    """Sample by sample by plain autograd, the teacher's weights in a model of its own."""
    run = trainer(*words(teachers), "balance.method=marble")
    epoch = run.draw(run._sampler().epoch(0))
    (chosen,) = run.split(epoch, 0, 0)
    report = run.gradient(epoch, chosen, step, 0, on_policy=False)
    found = {name: p.grad.clone() for name, p in run.parameters.items()}
    taught = taught_by(run, epoch)
    for sample, name in zip(epoch.samples, taught):
        assert (sample.prompt.source == "ocr") == (name == "blue")
    assert set(taught) == set(NAMES)

    adapter, pairs = run.adapter, run.settings.pairs
    states = {name: lora.read_file(teachers / name) for name in NAMES}
    points = run.balancer.objective.points(
        type("Drawn", (), {"samples": epoch.samples, "latents": epoch.rollout.latents})(),
        run.sigmas, seed=run.recipe.train.seed, inner=0, count=pairs,
    )  # fmt: skip
    run.parts.optimizer.zero_grad(set_to_none=True)
    loss = 0.0
    other = setup.build_adapter(run.recipe, torch.device("cpu"))
    other.add_lora(3, 9)
    for i, (sample, name) in enumerate(zip(epoch.samples, taught)):
        cond = adapter.encode([sample.prompt.text])
        model = other if name == "dark" else adapter
        c = float(report.coefficients_K[NAMES.index(name)]) / (taught.count(name) * pairs)
        for j in range(pairs):
            point = points(j, slice(i, i + 1))
            with torch.no_grad(), model.swapped(states[name][0]):
                goal = model.velocity(point.x_t, point.t_B, cond)
            v = adapter.velocity(point.x_t, point.t_B, cond)
            one = c * (v.double() - goal.double()).square().mean()
            one.backward()
            loss += float(one.detach())
    largest = max(float(p.grad.abs().max()) for p in run.parameters.values())
    assert largest > 1e-4
    for name, p in run.parameters.items():
        torch.testing.assert_close(found[name], p.grad, atol=2e-4 * largest, rtol=1e-3)
    assert report.loss == pytest.approx(loss, rel=1e-5)


def test_a_compiled_model_is_asked_for_whole_micro_batches_and_says_the_same(trainer, teachers):
    run = trainer(*words(teachers))
    adapter, taught = run.adapter, ["teacher-red", "teacher-dark", "teacher-red", "teacher-blue"]
    x = torch.randn(4, *adapter.latent_shape, generator=torch.Generator().manual_seed(0))
    point, cond = Point(x, torch.linspace(0.2, 0.9, 4), x), adapter.encode(["a cat"] * 4)
    sizes, velocity = [], adapter.velocity
    adapter.velocity = lambda *given: sizes.append(len(given[0])) or velocity(*given)
    with torch.no_grad():
        parts = taught_velocity(adapter, point, cond, taught)
        adapter.compiled = object()
        whole = taught_velocity(adapter, point, cond, taught)
    adapter.compiled = None
    assert sizes == [2, 1, 1, 4, 4, 4]
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)
    assert (parts[0] - parts[1]).abs().max() > 1e-3


def test_a_student_that_is_its_teacher_has_nothing_to_learn(trainer, teachers):
    same = {name: "red" for name in NAMES}
    given = ", ".join(f"{name}: '{teachers / 'red'}'" for name in same)
    run = trainer("objective.name=distil", f"objective.teachers={{{given}}}")
    for adapter in ("default", "old"):
        run.adapter.load_lora_state(adapter, lora.read_file(teachers / "red")[0])
    epoch = run.draw(run._sampler().epoch(0))
    (chosen,) = run.split(epoch, 0, 0)
    report = run.gradient(epoch, chosen, 1, 0, on_policy=False)
    assert report.loss == 0 and report.finite
    assert max(float(p.grad.abs().max()) for p in run.parameters.values()) == 0


def test_it_comes_nearer_to_its_teachers_on_its_own_pictures(trainer, teachers):
    run = trainer(*words(teachers), "train.steps=12", "balance.method=uniform", "optim.lr=0.03",
                  "rollout.old_decay={initial: 0}", random_lora=False)  # fmt: skip
    losses = [run.run_epoch()[0]["loss"] for _ in range(12)]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    # What teaches is as it was, and no part of what is trained or saved.
    for name in NAMES:
        now, before = run.adapter.lora_state(f"teacher-{name}"), lora.read_file(teachers / name)[0]
        assert all(torch.equal(now[key], before[key]) for key in before)
    assert not any("teacher" in key for part in run.state().tensors.values() for key in part)


def test_resumed_it_goes_on_bit_for_bit(trainer, teachers):
    asked = [*words(teachers), "train.steps=4"]
    unbroken = trainer(*asked)
    unbroken.run_epoch()
    saved = unbroken.state()
    saved.tensors = {k: {n: t.clone() for n, t in v.items()} for k, v in saved.tensors.items()}
    (row,) = unbroken.run_epoch()
    resumed = trainer(*asked, random_lora=False)
    resumed.load(saved)
    (again,) = resumed.run_epoch()
    assert again["loss"] == row["loss"] > 0
    for name, value in unbroken.parameters.items():
        assert torch.equal(resumed.parameters[name], value)


def method_words(name):
    rule = RULES[name]
    more = {"reward": ["balance.reward=dark"], "stages": ["balance.stages=[{rewards: [red]}, {}]"]}
    fixed = [f"balance.every={rule.fixes['every']}"] if rule.fixes else []
    return [f"balance.method={name}", *fixed, *more.get(rule.chosen_by, [])]


@pytest.mark.parametrize("method", sorted(RULES))
def test_every_method_balances_teachers(trainer, teachers, method):
    sized = ["model.lora={rank: 7, alpha: 14}"] if method == "steer" else []
    run = trainer(*words(teachers), *method_words(method), *sized, "train.steps=2")
    before = run.adapter.lora_state()
    rows = [row for _ in range(2) for row in run.run_epoch()]
    assert all(row["skipped"] == 0 and np.isfinite(row["loss"]) for row in rows)
    moved = [(v - before[n]).abs().max() for n, v in run.adapter.lora_state().items()]
    assert max(moved) > 1e-4


def test_teachers_that_are_not_there_or_do_not_fit(toy, teachers, tmp_path):
    asked = words(teachers, ("red", "blue"))
    gone = [*asked, f"objective.teachers.dark={tmp_path / 'gone'}"]
    error, _ = run_here(toy.recipe(*gone), tmp_path / "run")
    assert isinstance(error, MarbleError) and "\n" not in str(error)
    assert "objective.teachers.dark" in str(error) and "no such folder" in str(error)
    assert not (tmp_path / "run").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    error, _ = run_here(toy.recipe(*asked, f"objective.teachers.dark={empty}"), tmp_path / "run")
    assert "holds no run and no LoRA" in str(error)
    elsewhere = setup.build_adapter(toy.recipe(), torch.device("cpu"))
    elsewhere.add_lora(2, 4, targets=["to_q"])
    elsewhere.save_lora(tmp_path / "few")
    asked = [*asked, f"objective.teachers.dark={tmp_path / 'few'}"]
    error, _ = run_here(toy.recipe(*asked), tmp_path / "run")
    assert "objective.teachers.dark" in str(error) and "other layers" in str(error)
