"""Every objective on the tiny model: it trains, resumes bit for bit, and is shared by processes."""

import pytest
import torch
from _survive import (
    assert_same_run,
    final_state,
    kill_at,
    make_world,
    rewards_override,
    rows,
    run_here,
    run_processes,
    run_to_end,
    spawn,
)
from _training_toy import randomise

from marble.memory import estimate
from marble.models.build import build_adapter
from marble.recipe import load_recipe
from marble.training import setup
from marble.training.loop import Trainer
from marble.training.paired import base_scores
from marble.training.processes import Processes

GRPO = ["objective.name=grpo", "rollout.sampler=sde", "eval.sampler=euler"]
OBJECTIVES = {
    "awm": ["objective.name=awm"],
    "grpo": GRPO,
    "grpo window": [*GRPO, "rollout.sde.window=2", "rollout.steps=4", "objective.kl_every=2"],
    "dpo": ["objective.name=dpo", "train.batch_size=4", "train.steps_per_epoch=2"],
    "distil": ["objective.name=distil"],
}
TOYS = ("red", "blue", "dark")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    made = make_world(tmp_path_factory.mktemp("objectives"))
    adapter = build_adapter(load_recipe(str(made)), torch.device("cpu"))
    adapter.add_lora(2, 4)
    for seed, name in enumerate(TOYS):
        randomise(adapter, seed=seed)
        adapter.save_lora(made.parent / "teachers" / name)
    return made


def words(recipe, name):
    toys = rewards_override(recipe.parent / "toys.py", *TOYS)
    given = ", ".join(f"{toy}: '{recipe.parent / 'teachers' / toy}'" for toy in TOYS)
    teachers = [f"objective.teachers={{{given}}}"] * (name == "distil")
    # Behind θ, so that the ratio is not 1 and every policy has a part to play.
    behind = ["rollout.old_decay={initial: 0.5}", "objective.kl=0.01"]
    return [*OBJECTIVES[name], *teachers, toys, *behind]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_stopped_and_resumed_is_the_unbroken_run(recipe, tmp_path, name):
    """Four steps at once, or two and two: the same weights, rows and pictures."""
    common = [*words(recipe, name), "eval.every=0", "train.checkpoint_every=2"]
    for folder, stops in (("whole", [4]), ("halves", [2, 4])):
        for n, stop in enumerate(stops):
            source = recipe if n == 0 else tmp_path / folder / "config.yaml"
            changes = common if n == 0 else []
            outcome, _ = run_here(
                load_recipe(str(source), [*changes, f"train.steps={stop}"]),
                tmp_path / folder,
                resume=n > 0,
            )
            assert outcome.step == stop
    whole, _ = final_state(tmp_path / "whole")
    halves, _ = final_state(tmp_path / "halves")
    for key, tensor in whole.items():
        if key.startswith(("state/live", "state/old", "state/optimizer", "state/ema")):
            assert torch.equal(tensor, halves[key]), key
    table = rows(tmp_path / "whole")
    assert len(table) == 4 and not any(row["skipped"] for row in table)
    assert all(row["loss"] is not None for row in table)
    assert {row["alpha_raw/red"] for row in table} != {1 / 3}
    if name in ("awm", "dpo"):  # the KL is to v_old, not to the base
        assert all(row["kl"] == pytest.approx(row["old_deviation"], rel=1e-5) for row in table[1:])
        assert table[-1]["kl"] > 0
    moved = max(float(t.abs().max()) for k, t in whole.items() if ".lora_B." in k)
    assert moved > 1e-4


@pytest.mark.parametrize("name", ["awm", "grpo", "dpo"])
def test_its_gradient_raises_what_it_is_of(recipe, name):
    """Ten steps on one reward raise it: signs are right from reward to weights."""
    toys = rewards_override(recipe.parent / "toys.py", "red")
    more = ["balance.method=uniform", "train.steps=12", "optim.lr=0.02", "objective.kl=0"]
    more += ["data.prompts_per_epoch=6", "log.harmony_every=0", "train.timesteps_fraction=1.0"]
    more += ["train.steps_per_epoch=1"] + ["objective.beta=10"] * (name == "dpo")
    loaded = load_recipe(str(recipe), [*OBJECTIVES[name], toys, *more])
    processes = Processes("cpu")
    trainer = Trainer(loaded, setup.build(loaded, processes.device), processes)
    means = [trainer.run_epoch()[0]["reward/red/mean"] for _ in range(12)]
    trainer.close()
    assert sum(means[-3:]) > sum(means[:3]) + 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_killed_and_resumed_is_bit_for_bit_the_unbroken_run(recipe, tmp_path, name):
    changes = [*words(recipe, name), "train.steps=6"]
    outcome, _ = run_here(recipe, tmp_path / "unbroken", *changes)
    assert outcome.finished
    out = tmp_path / "run"

    def steps() -> int:
        file = out / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    process = spawn(run_to_end, str(recipe), str(out), changes)
    assert kill_at(process, 0.0, lambda: steps() >= 3)
    again = spawn(run_to_end, str(recipe), str(out), (), True)
    again.join(200)
    assert again.exitcode == 0
    assert_same_run(tmp_path / "unbroken", out)


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_are_one(recipe, tmp_path, name):
    changes = [*words(recipe, name), "train.steps=4", "eval.every=0"]
    for size in (1, 2):
        assert run_processes(size, recipe, tmp_path / str(size), *changes) == [0] * size
    (one, _), (two, _) = final_state(tmp_path / "1"), final_state(tmp_path / "2")
    for key, tensor in one.items():
        if key.startswith(("state/live", "state/old", "state/ema")):
            assert (tensor - two[key]).abs().max() <= 1e-5, key
    for a, b in zip(rows(tmp_path / "1"), rows(tmp_path / "2"), strict=True):
        for key in ("alpha_raw/red", "alpha_raw/blue", "loss"):
            assert a[key] == pytest.approx(b[key], abs=1e-4), (a["step"], key)


def test_paired_base_samples_share_the_noise_of_the_rollout(recipe):
    """Before the first step the base draws the very pictures of the rollout, noise included."""
    toys = rewards_override(recipe.parent / "toys.py", "red", "dark")
    loaded = load_recipe(str(recipe), [*OBJECTIVES["grpo window"], toys])
    processes = Processes("cpu")
    trainer = Trainer(loaded, setup.build(loaded, processes.device), processes)
    epoch = trainer.draw(trainer._sampler().epoch(0))
    paired = base_scores(trainer.adapter, trainer.parts.rewards, epoch.samples, loaded, processes)
    trainer.close()
    torch.testing.assert_close(torch.from_numpy(paired), epoch.rewards_KN, atol=1e-3, rtol=0)
    assert float(epoch.rewards_KN.std(1).min()) > 5e-3
    path = epoch.rollout.kept["path"]
    assert path.shape[:2] == (12, 3)  # a window of two steps
    counted = [estimate(r).held["latents of two epochs"] for r in (loaded, load_recipe(recipe))]
    drawn = epoch.rollout.latents
    assert counted[1] == pytest.approx(2e-9 * drawn.nbytes)
    assert counted[0] - counted[1] == pytest.approx(2e-9 * path.nbytes)


def test_a_sampler_with_noise_begins_a_prompts_pictures_at_the_same_latents(recipe):
    """What differs between them is then the noise of their steps; other prompts begin elsewhere."""
    toys = rewards_override(recipe.parent / "toys.py", "red")
    loaded = load_recipe(str(recipe), [*GRPO, toys])
    processes = Processes("cpu")
    trainer = Trainer(loaded, setup.build(loaded, processes.device), processes)
    epoch = trainer.draw(trainer._sampler().epoch(0))
    trainer.close()
    groups = torch.tensor([s.group for s in epoch.samples])
    path = epoch.rollout.kept["path"].flatten(2)
    same = groups[:, None] == groups[None]
    assert torch.equal((path[:, None, 0] == path[None, :, 0]).all(-1), same)
    apart = (path[:, None, -1] == path[None, :, -1]).all(-1)
    assert torch.equal(apart, torch.eye(len(groups), dtype=torch.bool))
