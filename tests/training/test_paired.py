"""Paired base samples in a run: which are drawn, what the base scores, and what is made of it."""

import json
import shutil

import numpy as np
import pytest
import torch
from _survive import assert_same_run, final_state, rows
from hypothesis import given
from hypothesis import strategies as st

from _toy_world import RECIPE, run_toy
from marble.data import Prompt, Sample
from marble.evaluation import relative_gains
from marble.harmonise import Harmoniser
from marble.recipe import load_recipe
from marble.study.toy.__main__ import build
from marble.study.toy.model import ToyAdapter
from marble.training.paired import base_scores, choose
from marble.training.processes import Processes

NAMES = ["reading", "counting", "similarity", "preference", "vivid"]


def run(folder, *words, resume=False):
    common = ["eval.images_per_prompt=1", "train.steps=6", "balance.progress.beta=12"]
    common += ["balance.target=full"]  # coefficients as the rule gives them
    recipe = run_toy(folder, *common, *words, resume=resume)
    return recipe, rows(folder)


def of(row, kind, names=NAMES):
    return np.array([row[f"{kind}/{name}"] for name in names], dtype=float)


def measured(table):
    return [row["step"] for row in table if "progress/vivid" in row]


# -- which pictures -------------------------------------------------------------------------------


def samples(groups):
    return [Sample(Prompt(f"{g}", "a", {}), g, 7 * i, i) for i, g in enumerate(groups)]


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(0, 70))
def test_as_evenly_from_all_prompts_as_can_be(groups, count):
    drawn = samples(groups)
    at = choose(drawn, count)
    assert at == choose(drawn, count) == sorted(set(at))
    assert len(at) == min(count, len(groups))  # more than there are: all
    assert set(at) <= set(range(len(groups)))
    taken = {g: sum(groups[i] == g for i in at) for g in set(groups)}
    for group, n in taken.items():
        own = [i for i, g in enumerate(groups) if g == group]
        assert [i for i in at if groups[i] == group] == own[:n]
        if n < len(own):  # it could have given more: nobody else gave two more than it
            assert max(taken.values()) <= n + 1


def test_which_pictures_by_hand():
    epoch = samples([4, 4, 4, 9, 9, 9, 2, 2, 2])
    assert choose(epoch, 3) == [0, 3, 6]
    assert choose(epoch, 5) == [0, 1, 3, 4, 6]
    assert choose(epoch, 2) == [0, 3]


# -- what the base scores -------------------------------------------------------------------------


def without_lora(recipe, chosen):
    """The scores of pictures of a model that never had a LoRA, drawn as a rollout is."""
    adapter, rewards = ToyAdapter(), build(recipe, torch.device("cpu")).rewards
    texts = [s.prompt.text for s in chosen]
    settings = recipe.rollout
    x = adapter.sample(
        adapter.encode(texts),
        [s.seed for s in chosen],
        steps=settings.steps,
        sampler=settings.sampler,
        guidance=settings.guidance,
    )
    return rewards.score(adapter.decode(x), texts, [dict(s.prompt.metadata) for s in chosen])


@pytest.mark.parametrize("words", [[], ["eval.steps=2"], ["eval.sampler=dpm", "eval.guidance=3"]])
def test_the_base_s_scores_are_those_of_rollouts_without_lora(words):
    recipe = load_recipe(str(RECIPE), ["eval.batch_size=3", *words])
    parts = build(recipe, torch.device("cpu"))
    for name in ("default", "old"):
        values = parts.adapter.lora_state(name)
        parts.adapter.load_lora_state(name, {k: v + 0.3 for k, v in values.items()})
    epoch = parts.samplers[0][1].epoch(3)
    chosen = [epoch[i] for i in choose(epoch, 20)]
    found = base_scores(parts.adapter, parts.rewards, chosen, recipe, Processes("cpu"))
    assert found.shape == (5, 20) and 0 < np.isnan(found).sum() < 40
    np.testing.assert_array_equal(found, without_lora(recipe, chosen))


# -- what a run does with it ----------------------------------------------------------------------


def test_a_run_measures_from_the_second_epoch_on_and_uses_it(tmp_path):
    words = ["optim.lr=0.03", "log.samples_every=1", "balance.progress.window=3"]
    recipe, table = run(tmp_path / "run", *words)
    assert measured(table) == [2, 3, 4, 5, 6]
    assert all(("time/paired" in row) == (row["step"] > 1) for row in table)
    state = final_state(tmp_path / "run")[1]["balance"]["harmoniser"]
    parts = build(recipe, torch.device("cpu"))
    now, base = (
        np.concatenate([np.array(part, dtype=float) for part in state["rule"]["pairs"][key]], 1)
        for key in ("now", "base")
    )
    epochs = [parts.samplers[0][1].epoch(n) for n in (3, 4, 5)]
    chosen = [epoch[i] for epoch in epochs for i in choose(epoch, 36)]
    np.testing.assert_allclose(base, without_lora(recipe, chosen), atol=0.1)
    scores = [json.loads(path.read_text())["score"] for path in sorted(advantages(tmp_path))][3:]
    drawn = [np.array(s, dtype=float)[:, choose(e, 36)] for s, e in zip(scores, epochs)]
    np.testing.assert_allclose(now, np.concatenate(drawn, 1), atol=1e-4)
    # What is logged, and the weights of the last step, are what these pairs say.
    np.testing.assert_allclose(of(table[-1], "progress"), relative_gains(now, base), rtol=1e-9)
    options = {"beta": 12.0, "window": 3, "redundancy": 4.0}
    balance = Harmoniser("progress", NAMES, options=options)
    balance.load_state_dict(state)
    found = of(table[-1], "coefficient")
    np.testing.assert_allclose(found, balance.cached().coefficients_K, rtol=1e-9)
    assert np.ptp(found) > 0.01


def advantages(folder):
    return (folder / "run" / "advantages").glob("step-*.json")


def test_once_an_epoch_whatever_its_steps(tmp_path):
    _, table = run(tmp_path / "run", "train.steps_per_epoch=2")
    assert measured(table) == [3, 5]


def test_without_pairs_the_batches_means_count(tmp_path):
    words = ["train.steps=12", "balance.progress.redundancy=0", "balance.progress.warmup=3"]
    _, table = run(tmp_path / "run", "balance.progress.paired=0", *words)
    assert measured(table) == [] and not any("time/paired" in row for row in table)
    found = np.array([of(row, "coefficient") for row in table])
    np.testing.assert_allclose(found[:3], 0.2)  # until the start is known
    means = np.array([of(row, "reward", [f"{n}/mean" for n in NAMES]) for row in table])
    stds = np.array([of(row, "reward", [f"{n}/std" for n in NAMES]) for row in table])
    start, mean = means[:3].mean(0), means[:3].mean(0)
    for step in range(3, 12):
        mean = 0.9 * mean + 0.1 * means[step]
        weight = np.exp(-12 * (mean - start) / np.sqrt((stds[:3] ** 2).mean(0)))
        np.testing.assert_allclose(found[step], weight / weight.sum(), rtol=1e-6)


def test_noise_gets_next_to_no_weight_and_the_others_keep_theirs(tmp_path):
    noise = '{name: noise, reward: "marble.rewards.synthetic:Noise", options: {seed: 1}}'
    words = ["train.steps=24", "optim.lr=0.03", f"rewards.add=[{noise}]"]
    words += ["balance.progress.beta=4"]
    _, table = run(tmp_path / "pairs", *words)
    _, without = run(tmp_path / "means", *words, "balance.progress.paired=0")
    later = table[11:]
    assert np.mean([row["progress_trust/noise"] for row in later]) < 0.2
    assert np.mean([row["coefficient/noise"] for row in later]) < 0.04
    assert np.mean([row["coefficient/noise"] for row in without[11:]]) > 0.1
    assert min(np.mean([of(row, "progress_trust") for row in later], axis=0)) > 0.9
    assert min(np.mean([of(row, "coefficient") for row in later], axis=0)) > 0.05


def test_an_opponent_of_most_gets_next_to_no_weight_and_that_is_told(tmp_path):
    opposed = "marble.study.toy.world:similarity"
    rewards = [
        f"{{name: again, reward: '{opposed}'}}",
        f"{{name: anti, reward: 'marble.rewards.synthetic:Altered', "
        f"options: {{reward: '{opposed}', scale: -1}}}}",
        "{name: noise, reward: 'marble.rewards.synthetic:Noise', options: {seed: 1}}",
    ]
    words = ["train.steps=24", "optim.lr=0.03", f"rewards.add=[{', '.join(rewards)}]"]
    # Noise is told by pictures that have moved away from the base's, which takes steps that move.
    words += ["rollout.old_decay.initial=0", "rollout.old_decay.rate=0"]
    _, table = run(tmp_path / "run", *words)
    _, without = run(tmp_path / "without", *words, "balance.progress.redundancy=0")
    assert max(row["coefficient/anti"] for row in table[2:]) < 0.02
    assert max(row["progress_trust/anti"] for row in table[2:]) < 0.05
    assert max(row["coefficient/anti"] for row in without[2:]) > 0.1
    told = {r["step"]: [n for n in r.get("notes", []) if n.startswith("Reward")] for r in table}
    notes = {step: found for step, found in told.items() if found}
    assert list(notes) == [9]  # the first with a full window
    assert [note for note in notes[9] if "anti" in note] == [
        "Reward anti is opposed by more rewards than support it (cosines of advantages): it "
        "keeps 5% of its weight."
    ]
    assert any("noise looks like noise" in note for note in notes[9])
    assert len(notes[9]) == 2


def test_a_hybrid_uses_them_too(tmp_path):
    words = ["balance.method=marble", "balance.hybrid=gate", "balance.every=2"]
    words += ["optim.lr=0.1", "optim.warmup_steps=0"]
    _, table = run(tmp_path / "run", *words)
    _, plain = run(tmp_path / "plain", *words, "balance.progress.paired=0")
    assert measured(table) == [2, 3, 4, 5, 6] and measured(plain) == []
    found, other = (np.array([of(row, "coefficient") for row in t]) for t in (table, plain))
    same = (found == other).all(1)
    assert same[0] and not same[2:].any()


@pytest.mark.parametrize("words", [[], ["balance.method=marble", "balance.hybrid=gate"]])
def test_a_resumed_run_goes_on_with_what_was_measured(tmp_path, words):
    """Killed after the fifth step, with a window of pairs to remember."""
    words = [*words, "train.steps=8", "balance.progress.window=3", "balance.every=2"]
    words += ["train.checkpoint_every=1", "train.keep_checkpoints=8"]
    run(tmp_path / "whole", *words)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    checkpoints = tmp_path / "cut" / "checkpoints"
    for path in sorted(checkpoints.glob("step-*"))[5:]:
        shutil.rmtree(path)
    (checkpoints / "latest").unlink()
    _, table = run(tmp_path / "cut", *words, resume=True)
    assert measured(table) == list(range(2, 9))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


# -- rewards that fail, or look odd, on the base's pictures ---------------------------------------

ODD = """
calls = 0


def shy(images, prompts, metadata):
    \"\"\"Fails in the fifth batch: the base's, of the third epoch.\"\"\"
    global calls
    calls += 1
    values = images[:, 0].float().mean((1, 2)).div(255).tolist()
    return [float("inf"), *values[1:]] if calls == 5 else values


def settled(images, prompts, metadata):
    \"\"\"Tells only the base's pictures apart: every second batch, from the second epoch on.\"\"\"
    global calls
    calls += 1
    return [0.5 + 0.1 * i * (calls > 1 and calls % 2) for i in range(len(images))]
"""


def odd(trainer, folder, name, steps):
    (folder / "odd.py").write_text(ODD)
    reward = f"{{name: {name}, reward: '{folder}/odd.py:{name}'}}"
    one = trainer(
        f"rewards.add=[{reward}]",
        "rewards.on_error=skip_sample",
        "rollout.batch_size=99",
        "balance.method=progress",
        f"train.steps={steps}",
    )
    return [row for _ in range(steps) for row in one.run_epoch()]


def test_a_pair_that_cannot_be_scored_is_told_with_its_step(trainer, tmp_path):
    table = odd(trainer, tmp_path, "shy", 4)
    assert [row["reward/shy/skipped"] for row in table] == [0, 0, 1, 0]
    told = [row["step"] for row in table if "skipped 1 of 9" in str(row.get("notes"))]
    assert told == [3]


def test_the_base_s_pictures_say_nothing_about_a_reward_s_health(trainer, tmp_path):
    """A reward that has come to rest is reported once, though the base's scores still vary."""
    table = odd(trainer, tmp_path, "settled", 10)
    told = [row["step"] for row in table if "it teaches nothing" in str(row.get("notes"))]
    assert told == [8]  # 64 values of nine a step
