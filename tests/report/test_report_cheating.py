"""Drift statistics of runs that were really trained: one made to cheat, one as the recipe has it.

The cheat is DiffusionNFT on the aesthetic score alone, without KL and without the trust region:
within a few steps the score soars and the pictures no longer care for their prompts.
The other run is the default recipe.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from _train import train

from marble.report import write
from marble.report.folder import read_run
from marble.report.verdict import judge

SHORT = (
    "data.prompts_per_epoch=6",
    "data.images_per_prompt=8",
    "rollout.steps=6",
    "rollout.batch_size=48",
    "train.steps=24",
    "train.batch_size=24",
    "train.checkpoint_every=0",
    "eval.every=12",
    "eval.prompts=16",
    "log.samples_every=0",
)
CHEAT = (
    "balance.method=single",
    "balance.reward=studio-aesthetic",
    "objective.kl=0",
    "rollout.old_decay={initial: 0, rate: 0, cap: 0}",
    "optim.lr=2e-3",
    "optim.warmup_steps=1",
)


@pytest.mark.slow
def test_a_real_cheat_is_flagged(open_page, tmp_path: Path) -> None:
    run = train(tmp_path / "cheat", "studio", *SHORT, *CHEAT)
    verdict = judge(read_run(run))
    assert verdict.last is not None and verdict.tone == "bad"
    score = verdict.last.trained
    assert [g.name for g in score] == ["studio-aesthetic"] and score[0].improved
    flagged = {check.name: check.sentence for check in verdict.last.flagged}
    assert "studio-aesthetic rises by " in flagged["gap"]
    assert "not trained on" in flagged["gap"]
    assert len(flagged) > 1, "the pictures themselves give it away too"
    page = open_page(write([run], tmp_path / "cheat.html"))
    assert page.locator("#drift .fact.flagged:visible").count() > 0
    assert page.locator("#drift tr.flagged:visible").count() == len(flagged)
    assert "Signs of cheating" in page.inner_text("#verdict")


@pytest.mark.slow
def test_the_default_recipe_stays_quiet(open_page, tmp_path: Path) -> None:
    run = train(tmp_path / "calm", "studio", *SHORT)
    verdict = judge(read_run(run))
    assert len(verdict.candidates) == 2
    for candidate in verdict.candidates:
        assert len(candidate.checks) >= 7
        assert [check.sentence for check in candidate.flagged] == []
    page = open_page(write([run], tmp_path / "calm.html"))
    assert page.locator("#drift .fact.calm:visible").count() == 1
    assert page.locator("#drift tr.flagged, #drift .fact.flagged").count() == 0
