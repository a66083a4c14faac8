"""What must not depend on how a step is cut into pieces, and what must hold at every refresh."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from marble.balance import Plan
from marble.objectives import points
from marble.training import optimise
from marble.training.optimise import Settings, kl_offset, split_epoch


def gradient(trainer) -> torch.Tensor:
    """The whole gradient of the step just taken (the optimiser leaves `.grad` as it was)."""
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values()]).double()


def weights(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.parameters.values()]).double()


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("method", ["marble", "weighted_sum", "progress"])
def test_batch_size_does_not_change_the_step(trainer, method):
    """5 groups of 3 in micro-batches of 4, 7 or all 15: with remainders 3 and 1, and with none."""
    found = {}
    for size in (4, 7, 15, 100):
        run = trainer(
            f"balance.method={method}",
            f"train.batch_size={size}",
            "data.prompts_per_epoch=5",
            "objective.kl=0.01",
            "log.harmony_every=0",
        )
        row = run.run_epoch()[0]
        found[size] = gradient(run), row
    expected, row = found[100]
    for size in (4, 7, 15):
        grad, other = found[size]
        assert relative_error(grad, expected) < 1e-4
        for key in ("loss", "kl", "old_deviation", "alpha/red", "coefficient/blue"):
            assert other[key] == pytest.approx(row[key], rel=1e-4, abs=1e-7), key


@pytest.mark.parametrize("probe", [1.0, 0.4])
def test_recorded_halves_do_not_change_the_step(trainer, monkeypatch, probe):
    """Micro-batches of 6, of which recorded ones come as 2 and 4, the last one (3) as it is."""
    monkeypatch.setattr(optimise, "SMALLEST", 2)
    found, counted, real = {}, [], Plan._record

    def watched(plan, v, *rest):
        counted[-1].append(len(v))
        real(plan, v, *rest)

    monkeypatch.setattr(Plan, "_record", watched)
    for halves in (False, True):
        run = trainer(
            f"balance.probe={probe}",
            "train.batch_size=6",
            "data.prompts_per_epoch=5",
            "objective.kl=0.01",
            "log.harmony_every=0",
        )
        monkeypatch.setattr(run.adapter, "halves", halves)
        counted.append([])
        row = run.run_epoch()[0]
        found[halves] = gradient(run), row
    assert set(counted[0]) <= {6, 3} and set(counted[1]) <= {2, 4, 3}
    assert sum(counted[0]) == sum(counted[1])
    assert relative_error(found[True][0], found[False][0]) < 1e-4
    for key in ("loss", "kl", "alpha/red", "coefficient/blue"):
        assert found[True][1][key] == pytest.approx(found[False][1][key], rel=1e-4, abs=1e-7), key


@pytest.mark.parametrize("every", [1, 2])
def test_uniform_is_marble_with_equal_coefficients(trainer, every):
    """The refresh step's two passes against the single backward, and the steps in between."""
    overrides = [
        "train.steps=3",
        "log.harmony_every=0",
        "balance.target=full",
        f"balance.every={every}",
        "objective.kl=0.01",
    ]
    uniform = trainer("balance.method=uniform", *overrides)
    forced = trainer("balance.method=marble", *overrides)
    rule = forced.balancer.harmoniser.rule
    solve = type(rule).weights

    def equal(gram, preference):
        answer = solve(rule, gram, preference)
        return type(answer)(np.full(len(gram), 1 / len(gram)), answer.gap, answer.info)

    rule.weights, rule.normalise = equal, False
    for _ in range(3):
        (a,), (b,) = uniform.run_epoch(), forced.run_epoch()
        assert relative_error(gradient(forced), gradient(uniform)) < 1e-3
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
        forced.step = uniform.step
    torch.testing.assert_close(weights(forced), weights(uniform), atol=1e-4, rtol=0)


@pytest.mark.parametrize("target", ["full", "reward"])
def test_marble_never_works_against_a_reward(trainer, monkeypatch, target):
    """On refresh steps cos(d, g_k) ≥ −1e-6, taken from the gradient that is really there."""
    run = trainer(
        "train.steps=6",
        "balance.every=1",
        f"balance.target={target}",
        "objective.kl=0",
        "optim.grad_clip=null",
    )
    worst, honest = [], optimise.take_step

    def watched(adapter, balancer, *args, **options):
        report = honest(adapter, balancer, *args, **options)
        jacobian = balancer.jacobian
        d = jacobian.flatten({p: p.grad for p in balancer.parameters}).double()
        if jacobian.outside is not None:  # the pull to v_old is no reward's
            d -= jacobian.outside.data[0, 0].double()
        for k in range(balancer.k):
            g = jacobian.rows.data[:, k].sum(0).double()
            if g.norm() > 0:
                worst.append(cosine(d, g))
        return report

    monkeypatch.setattr("marble.training.loop.take_step", watched)
    harmony = [run.run_epoch()[0]["harmony/min"] for _ in range(6)]
    assert len(worst) >= 12
    assert min(worst) >= -1e-6
    assert min(harmony) == pytest.approx(min(worst), abs=1e-5)


def test_the_weighted_sum_does_work_against_one(trainer):
    """So that the test above can fail: the same rewards, summed, do conflict."""
    settings = ["balance.method=weighted_sum", "log.harmony_every=1", "objective.kl=0"]
    run = trainer(*settings, "train.steps=6")
    assert min(run.run_epoch()[0]["harmony/min"] for _ in range(6)) < 0


def test_several_steps_an_epoch_and_inner_epochs(trainer, monkeypatch):
    """9 samples in 2 steps, twice over: every sample once a pass, and the run ends mid-epoch."""
    seen: list[tuple[int, list[int]]] = []
    honest = optimise.take_step

    def watched(adapter, balancer, batch, part, *args, **options):
        assert batch.size == len(part.samples)
        seen.append((options["inner"], [s.index for s in part.samples]))
        return honest(adapter, balancer, batch, part, *args, **options)

    monkeypatch.setattr("marble.training.loop.take_step", watched)
    run = trainer("train.steps=7", "train.steps_per_epoch=2", "train.inner_epochs=2")
    first, second = run.run_epoch(), run.run_epoch()
    assert [r["step"] for r in first + second] == [1, 2, 3, 4, 5, 6, 7]
    assert run.finished
    assert len({r["drift/contrast"] for r in first}) == 1  # one rollout, looked at once
    for r in first:  # images a second of the whole epoch, not of a quarter of it
        assert r["images_per_s"] < 9 / r["time/rollout"]
    for inner in (0, 1):
        taken = [i for n, part in seen[:4] if n == inner for i in part]
        assert sorted(taken) == list(range(9))
    assert sorted(len(part) for _, part in seen[:4]) == [4, 4, 5, 5]
    assert seen[0][1] != seen[2][1]  # dealt anew in the second pass
    noise = [
        points.pair_noise(run.last[0].samples[:1], run.last[0].latents, 0, n, 0) for n in (0, 1)
    ]
    assert not torch.equal(*noise)


def test_two_halves_of_an_epoch_make_its_whole(trainer, monkeypatch):
    """With frozen weights and counts carried along, two steps' gradients add up to one step's."""
    grads = []

    def freeze(run):
        monkeypatch.setattr(run.parts.optimizer, "step", lambda: grads.append(gradient(run)))

    # Of whole gradients: a step's reward part is sized by the samples of that step.
    settings = ["balance.method=single", "balance.reward=dark", "balance.target=full"]
    settings += ["log.harmony_every=0"]
    settings += ["data.prompts_per_epoch=4", "optim.grad_clip=null"]
    whole = trainer(*settings)
    halves = trainer(*settings, "train.steps_per_epoch=2")
    for run in (whole, halves):
        freeze(run)
        run.run_epoch()
    assert relative_error((grads[1] + grads[2]) / 2, grads[0]) < 1e-4


def test_split_epoch_deals_every_sample_once():
    for count, parts in ((9, 2), (7, 3), (5, 5), (4, 1)):
        dealt = list(split_epoch(count, parts, seed=0, epoch=3, inner=0))
        assert len(dealt) == parts
        assert sorted(np.concatenate(dealt)) == list(range(count))
        assert all(len(part) for part in dealt)


def test_kl_on_every_mth_timestep_is_unbiased(trainer, monkeypatch):
    """Averaged over all offsets: the gradient with the KL everywhere, also for unequal batches."""
    m = 3
    settings = ["balance.method=uniform", "log.harmony_every=0", "objective.kl=0.5"]
    everywhere = trainer(*settings)
    (row,) = everywhere.run_epoch()
    without = trainer(*settings[:2], "objective.kl=0")
    without.run_epoch()
    assert relative_error(gradient(without), gradient(everywhere)) > 0.1  # so the KL matters
    grads, kls = [], []
    for offset in range(m):
        monkeypatch.setattr(optimise, "kl_offset", lambda *_, o=offset: o)
        sparse = trainer(*settings, f"objective.kl_every={m}")
        kls.append(sparse.run_epoch()[0]["kl"])
        grads.append(gradient(sparse))
    assert relative_error(grads[0], grads[1]) > 1e-3
    assert relative_error(sum(grads) / m, gradient(everywhere)) < 1e-4
    assert np.mean(kls) == pytest.approx(row["kl"], rel=0.2)  # as logged: of the pairs looked at


def test_kl_offsets_are_all_used():
    settings = Settings(seed=0, batch_size=1, pairs=1, kl=1.0, kl_every=4)
    counts = Counter(kl_offset(settings, step) for step in range(400))
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 60


def test_kl_beside_the_recorded_micro_batches_is_unbiased(trainer, monkeypatch):
    """Over all beginnings and offsets, with uneven batches: the gradient with the KL everywhere."""
    m, count = 2, 6
    settings = ["balance.method=uniform", "log.harmony_every=1", "objective.kl=0.5"]
    everywhere, sparse = trainer(*settings), trainer(*settings, "balance.probe=0.4")
    sparse.settings = replace(sparse.settings, kl_every=m)
    epoch = sparse.draw(sparse._sampler().epoch(0))
    taken = []
    record = Plan._record

    def watched(plan, v, P, N, at, extra):
        taken.append(extra is not None)
        record(plan, v, P, N, at, extra)

    def step(run):
        run.gradient(epoch, np.arange(len(epoch.samples)), 0, 0, on_policy=False)
        return gradient(run)

    expected, grads = step(everywhere), []
    monkeypatch.setattr(Plan, "_record", watched)
    for turn in range(count):
        for offset in range(m):
            monkeypatch.setattr(optimise, "kl_offset", lambda *_, o=offset: o)
            monkeypatch.setattr(optimise, "first_recorded", lambda *_, t=turn: t)
            grads.append(step(sparse))
    assert len(taken) == 3 * len(grads) and not any(taken)  # three of six micro-batches
    assert relative_error(grads[0], expected) > 1e-3
    assert relative_error(sum(grads) / len(grads), expected) < 1e-4


def test_kl_weights_have_the_expectation_of_the_kl_everywhere(monkeypatch):
    """Each micro-batch's weight, summed over all equally likely choices."""
    for count, recorded, m in ((7, 2, 3), (5, 4, 1), (4, 4, 2), (1, 1, 1), (6, 0, 4), (0, 1, 2)):
        settings = Settings(seed=0, batch_size=1, pairs=1, kl=0.25, kl_every=m)
        total = np.zeros(count)
        for turn in range(max(1, count)):
            for offset in range(m):
                monkeypatch.setattr(optimise, "kl_offset", lambda *_, o=offset: o)
                weights = optimise.kl_weights(settings, 0, count, recorded)
                if 0 < recorded < count:
                    assert not any(weights[:recorded])
                total += np.roll(weights, turn)
        assert np.allclose(total / (max(1, count) * m), 0.25)


def test_every_micro_batch_is_recorded_first_in_some_step():
    settings = Settings(seed=0, batch_size=1, pairs=1, kl=1.0, kl_every=1)
    counts = Counter(optimise.first_recorded(settings, step, 5) for step in range(500))
    assert set(counts) == set(range(5)) and min(counts.values()) > 60


@pytest.mark.parametrize("refresh", [True, False])
def test_no_micro_batch_reads_a_value_back(trainer, monkeypatch, refresh):
    """On a GPU a read waits for all that is queued: they come once, at the end of the step."""
    reads = []

    def forbid(name):
        honest = getattr(torch.Tensor, name)

        def read(tensor, *args):
            # Positions in the batch, and what is asked about them, never were on a device.
            if inside and not (tensor.dtype in (torch.int64, torch.bool) and tensor.numel() < 100):
                reads.append(name)
            return honest(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, read)

    inside = []
    honest = optimise._micro_batch

    def micro_batch(*args):
        inside.append(True)
        honest(*args)
        inside.clear()

    run = trainer("objective.kl=0.5", "balance.heldout_half=true")
    epoch = run.draw(run._sampler().epoch(0))
    monkeypatch.setattr(optimise, "_micro_batch", micro_batch)
    for name in ("cpu", "item", "tolist", "numpy", "__bool__", "__float__", "__int__"):
        forbid(name)
    step = 0 if refresh else 1
    report = run.gradient(epoch, np.arange(len(epoch.samples)), step, 0, on_policy=False)
    assert report.refreshed == refresh and report.finite
    assert reads == []


def test_gradient_checkpointing_changes_nothing(trainer):
    plain, checkpointed = trainer(), trainer("model.gradient_checkpointing=true")
    for _ in range(2):  # a refresh and an ordinary step
        a, b = plain.run_epoch()[0], checkpointed.run_epoch()[0]
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert relative_error(gradient(checkpointed), gradient(plain)) < 1e-3


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_stays_close(trainer, precision):
    exact, rough = trainer(), trainer(f"train.precision={precision}")
    for _ in range(2):
        a, b = exact.run_epoch()[0], rough.run_epoch()[0]
        assert b["skipped"] == 0
        assert b["loss"] == pytest.approx(a["loss"], rel=2e-2)
        assert all(p.dtype == torch.float32 for p in rough.parameters.values())
    assert cosine(weights(rough) - weights(exact), weights(exact)) < 0.1


def test_reduced_precision_gradient_points_the_same_way(trainer):
    """On one and the same rollout."""
    exact, rough = trainer("objective.kl=0"), trainer("objective.kl=0", "train.precision=bf16")
    rollout = exact.rollout(exact._sampler().epoch(0))
    for run in (exact, rough):
        run.rollout = lambda _: rollout
        run.run_epoch()
    assert cosine(gradient(rough), gradient(exact)) > 0.95


def test_a_reward_without_information_leaves_the_step(toy, trainer):
    entries = ", ".join(f"{{name: {n}, reward: '{toy.rewards_file}:{n}'}}" for n in ("red", "flat"))
    (row,) = trainer(f"rewards.train=[{entries}]").run_epoch()
    assert row["coefficient/flat"] == 0
    assert row["reward/flat/informative"] == 0
    assert any("flat" in note for note in row["notes"])


@pytest.mark.parametrize("method", ["marble", "weighted_sum"])
def test_on_policy_one_forward_gives_both_velocities(trainer, monkeypatch, method):
    """With v_old = v_θ its pass is left out, to the same bits; a step that moved v_θ ends it."""
    honest, told = optimise.take_step, []

    def run(skip: bool, *overrides: str):
        made = trainer(f"balance.method={method}", "train.steps=8", *overrides)

        def watched(*args, on_policy, **options):
            told.append(on_policy)
            return honest(*args, on_policy=on_policy and skip, **options)

        monkeypatch.setattr("marble.training.loop.take_step", watched)
        told.clear()
        rows = [row for _ in range(2) for row in made.run_epoch()]
        return made, rows, list(told)

    settings = ["rollout.old_decay.rate=0", "train.steps_per_epoch=2", "train.inner_epochs=2"]
    fast, rows, where = run(True, *settings)
    assert where == [True, False, False, False] * 2
    plain, others, _ = run(False, *settings)
    assert torch.equal(weights(fast), weights(plain))
    for row, other in zip(rows, others):
        assert row["loss"] == other["loss"] and row["old_deviation"] == other["old_deviation"]
    assert rows[0]["old_deviation"] == 0 < rows[1]["old_deviation"]
    assert run(True, "rollout.old_decay.rate=0.1")[2] == [True, False]


def test_progress_starts_from_the_rewards_priorities(trainer):
    run = trainer("balance.method=progress", "balance.target=full", "rewards.red.priority=3")
    names = run.recipe.rewards.names
    row = run.run_epoch()[0]
    for name in names:
        share = (3 if name == "red" else 1) / (len(names) + 2)
        assert row[f"coefficient/{name}"] == pytest.approx(share)
