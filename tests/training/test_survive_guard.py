"""Numbers that are not finite, spikes, and memory that runs out."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from _survive import final_state, make_world, rewards_override, rows, run_here
from rich.console import Console
from safetensors.torch import load_file

from _toy_world import run_toy
from marble.balance import StepReport
from marble.errors import MarbleError
from marble.objectives import points
from marble.recipe import load_recipe
from marble.training import guard as guards
from marble.training import loop
from marble.training.guard import Guard
from marble.training.memory import savings


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("guard"))


@pytest.fixture
def poison(monkeypatch):
    """Makes the noise of chosen samples NaN, so that their loss is not finite."""
    real, chosen = points.pair_noise, {}

    def noise(samples, like, *args):
        value = real(samples, like, *args)
        for i, sample in enumerate(samples):
            if chosen["when"](sample):
                chosen.setdefault("prompts", set()).add(sample.prompt.text)
                value[i] = float("nan")
        return value

    monkeypatch.setattr(points, "pair_noise", noise)
    return chosen


@pytest.mark.parametrize("step", [2, 4])  # ordinary, and one that solves
def test_a_step_that_is_not_finite_is_skipped_and_changes_nothing(recipe, tmp_path, poison, step):
    first = 12 * (step - 1)
    poison["when"] = lambda sample: sample.index in (first, first + 1)
    out = tmp_path / "run"
    outcome, said = run_here(
        recipe, out, "train.steps=5", "train.keep_checkpoints=9", "eval.at_start=false"
    )
    assert outcome.finished
    assert [row["skipped"] for row in rows(out)] == [int(s >= step) for s in range(1, 6)]
    (prompt,) = poison["prompts"]
    message = f"loss not finite for 2 samples, prompts such as '{prompt}'"
    assert f"step {step}: step {step} skipped: {message}" in said
    assert any(message in note for note in rows(out)[step - 1]["notes"])
    parts = [out / "checkpoints" / f"step-{s:06d}" / "state" for s in (step - 1, step, step + 1)]
    for name in ("live", "ema", "optimizer"):
        before, skipped, after = (load_file(p / f"{name}.safetensors") for p in parts)
        assert all(torch.equal(before[key], skipped[key]) for key in before)
        assert any(not torch.equal(before[key], after[key]) for key in before)
    before, skipped, _ = (json.loads((p / "trainer.json").read_text()) for p in parts)
    alpha = [m["balance"]["harmoniser"] for m in (before, skipped)]
    for key in ("alpha", "ema", "alpha_K"):
        if key in alpha[0]:
            assert alpha[0][key] == alpha[1][key]
    assert skipped["guard"]["skipped"] == before["guard"]["skipped"] + 1


def test_too_many_in_a_row_stop_and_name_the_last_good_checkpoint(
    recipe, tmp_path, poison, monkeypatch
):
    monkeypatch.setattr(guards, "MAX_IN_A_ROW", 3)
    poison["when"] = lambda sample: sample.index >= 24
    out = tmp_path / "run"
    error, _ = run_here(recipe, out, "train.steps=9", "eval.at_start=false")
    assert isinstance(error, MarbleError)
    assert "3 steps in a row" in str(error) and "optim.lr" in str(error)
    assert f"the last good checkpoint is {out}/checkpoints/step-000004" in str(error)
    assert "\n" not in str(error)


def test_the_reward_whose_gradient_is_not_finite_is_named(recipe, tmp_path, monkeypatch):
    """A gradient that overflows where the loss does not: only the solve can say whose it is."""
    from marble.jacobian import Jacobian

    real, calls = Jacobian.reduce, []

    def reduce(self, group=None):
        real(self, group)
        calls.append(1)
        if len(calls) == 2:
            self.rows.data[0, 1, 0] = float("inf")

    monkeypatch.setattr(Jacobian, "reduce", reduce)
    outcome, said = run_here(recipe, tmp_path / "run", "train.steps=5", "eval.at_start=false")
    assert outcome.finished
    assert "step 4 skipped: The gradient of blue is not finite" in said
    assert [row["skipped"] for row in rows(tmp_path / "run")] == [0, 0, 0, 1, 1]


@pytest.mark.slow  # half precision is slow on a CPU
def test_the_loss_scale_of_fp16_falls_until_it_fits_and_is_kept(recipe, tmp_path, monkeypatch):
    begin = 24  # far above 12, where it begins; more than ten skips in a row would end the run
    monkeypatch.setattr(guards, "FP16_START", 2.0**begin)
    out = tmp_path / "run"
    toys = rewards_override(recipe.parent / "toys.py", "red", "dark")
    changes = [toys, "train.precision=fp16", "eval.at_start=false", "eval.every=0"]
    changes += ["data.prompts_per_epoch=1", "rollout.batch_size=4", "train.batch_size=4"]
    outcome, _ = run_here(recipe, out, *changes, "train.steps=8", "train.max_hours=1e-9")
    assert not outcome.finished
    assert final_state(out)[1]["guard"]["scale"] == 2.0 ** (begin - 1)
    outcome, _ = run_here(
        out / "config.yaml", out, "train.steps=20", "train.max_hours=null", resume=True
    )
    assert outcome.finished
    skipped = [row["skipped"] for row in rows(out)]
    assert skipped[0] == 1 and skipped[-1] < 10  # it found a scale that fits
    assert final_state(out)[1]["guard"]["scale"] == 2.0 ** (begin - skipped[-1])
    live = {k: v for k, v in final_state(out)[0].items() if k.startswith("state/live")}
    assert all(v.isfinite().all() for v in live.values())
    assert any(v.abs().max() > 1e-4 for k, v in live.items() if "lora_B" in k)


def test_the_loss_scale_of_fp16_grows_again():
    guard, weight = Guard(fp16=True), torch.nn.Parameter(torch.ones(2))
    start = guard.scale
    weight.grad = torch.ones(2)
    assert not guard.accepts(replace(report(), finite=False), [weight], [], None)
    assert guard.scale == start / 2
    for _ in range(guards.FP16_GROWTH_STEPS):
        assert guard.accepts(report(), [weight], [], None)
    assert guard.scale == start
    assert Guard(fp16=False).scale == 1


def report(**values):
    return StepReport(np.ones(1), np.ones(1), np.ones(1), loss=1.0, **values)


def test_spikes_are_told_from_the_usual():
    guard, weight = Guard(fp16=False), torch.nn.Parameter(torch.ones(1))
    for step in range(20):
        weight.grad = torch.tensor([0.1 + 0.01 * (step % 3)])
        assert guard.accepts(report(kl=1e-3), [weight], [], None)
        assert guard.spikes(report(kl=1e-3)) == []
    other = Guard(fp16=False)
    other.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    for one in (guard, other):
        weight.grad = torch.tensor([5.0])
        assert one.accepts(report(kl=1e-3), [weight], [], 1.0)
        assert weight.grad.item() == pytest.approx(1.0)  # clipped
        found = one.spikes(report(kl=0.5))
        assert found[0].startswith("gradient norm jumped to 5, 45 times")
        assert found[1] == "KL jumped to 0.5, 500 times its recent median"


def test_growing_from_nothing_is_no_spike():
    """As the KL does: it is zero at the first step."""
    kl, usual = Guard(fp16=False), 1e-9
    kl.norm = 0.1
    for _ in range(40):
        assert kl.spikes(report(kl=usual)) == []
        usual *= 1.6  # within twenty steps ten thousand times as much
    assert kl.spikes(report(kl=10 * usual)) != []


def test_spikes_are_in_the_rows(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "SPIKE_AFTER", 2)
    monkeypatch.setattr(guards, "SPIKE_FACTOR", 1e-3)
    monkeypatch.setattr(guards, "SPIKE_STEP", 1e-3)
    outcome, said = run_here(recipe, tmp_path / "run", "train.steps=3", "eval.at_start=false")
    assert outcome.finished
    notes = [row.get("notes", []) for row in rows(tmp_path / "run")]
    assert [any("gradient norm jumped" in n for n in ns) for ns in notes] == [False, False, True]
    assert "step 3: gradient norm jumped" in said


def test_out_of_memory_names_what_lowers_it_cheapest_first(recipe, tmp_path, monkeypatch):
    real = loop.take_step

    def greedy(*args, step, **options):
        if step == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return real(*args, step=step, **options)

    monkeypatch.setattr(loop, "take_step", greedy)
    error, _ = run_here(
        recipe, tmp_path / "run", "eval.at_start=false", "balance.heldout_half=true"
    )
    assert isinstance(error, MarbleError) and "\n" not in str(error)
    names = [
        "model.gradient_checkpointing=true",
        "train.batch_size below 3",
        "rollout.batch_size below 6",
        "model.offload_encoders=true",
        "model.dtype=bf16",
        "balance.heldout_half=false",
        "model.lora.rank below 2",
    ]
    places = [str(error).index(name) for name in names]
    assert places == sorted(places)
    assert final_state(tmp_path / "run")[1]["step"] == 1


def test_only_what_can_still_be_lowered_is_named(recipe):
    tight = [
        "model.gradient_checkpointing=true",
        "train.batch_size=1",
        "rollout.batch_size=1",
        "model.offload_encoders=true",
        "model.dtype=bf16",
    ]
    named = savings(load_recipe(str(recipe), tight), processes=2)
    assert [text.split()[0].split("=")[0] for text in named] == ["model.lora.rank", "train.fsdp"]


CONTRARY = [
    "rewards.drop=[vivid]",
    "rewards.add=[{name: contrary, reward: 'marble.rewards.synthetic:Altered', "
    "options: {reward: 'marble.study.toy.world:similarity', scale: -1}}]",
    "balance.method=marble",
    "balance.every=2",
    "eval.at_start=false",
]


def test_two_rewards_that_cancel_out_are_told_once(tmp_path):
    """On the terminal and in the log, at the third solve; a run that goes on has not forgotten."""
    console = Console(file=io.StringIO(), width=400)
    run_toy(tmp_path / "run", *CONTRARY, "train.steps=4", console=console)
    run_toy(tmp_path / "run", *CONTRARY, "train.steps=8", resume=True, console=console)
    pair = "similarity and contrary oppose each other (cosine of their gradients -1.00)"
    said = f"{pair}: both are left out."
    assert console.file.getvalue().count(said) == 1
    notes = [note for row in rows(tmp_path / "run") for note in row.get("notes", ())]
    assert sum(said in note for note in notes) == 1
    [told] = [row["step"] for row in rows(tmp_path / "run") if said in str(row.get("notes"))]
    assert told == 5
    run_toy(tmp_path / "sum", *CONTRARY[:2], "balance.method=uniform", "train.steps=2")
    assert not any("notes" in row for row in rows(tmp_path / "sum"))
