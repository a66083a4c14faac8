"""Image statistics: each answers to the change it is meant to see, the flags to nothing less."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from _runs import HELDOUT, REWARDS, Spec, make_run

from marble.evaluation.drift import NAMES, diversity, drift_statistics
from marble.report.curves import training
from marble.report.flags import base_range, checks, statistics
from marble.report.folder import read_run
from marble.report.gains import Gain
from marble.report.verdict import judge


def images(n: int = 6, size: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(60, 190, (n, 3, size, size)).astype(np.uint8)


def flat(value: int, n: int = 2, size: int = 32) -> np.ndarray:
    return np.full((n, 3, size, size), value, np.uint8)


def test_every_statistic_is_there_and_finite() -> None:
    found = drift_statistics(images(), groups=[0, 0, 0, 1, 1, 1])
    assert tuple(found) == NAMES
    assert all(v.shape == (6,) and np.isfinite(v).all() for v in found.values())


def test_a_flat_picture_is_blank_and_has_no_detail() -> None:
    found = drift_statistics(flat(128), groups=[0, 0])
    for name in ("sharpness", "contrast", "saturation", "entropy", "edges", "diversity"):
        assert found[name] == pytest.approx([0, 0], abs=1e-12), name
    assert found["blank"].tolist() == [1, 1]


def test_known_values() -> None:
    halves = flat(0, 1)
    halves[..., 16:] = 255
    found = drift_statistics(halves)
    assert found["contrast"][0] == pytest.approx(0.5)
    assert found["entropy"][0] == pytest.approx(1.0)
    assert found["edges"][0] == pytest.approx(1 / 32)
    assert found["blank"][0] == 0
    red = flat(0, 1)
    red[:, 0] = 200
    assert drift_statistics(red)["saturation"][0] == pytest.approx(1.0)


def test_each_statistic_moves_the_right_way() -> None:
    plain = images()
    soft = ((plain.astype(float) + np.roll(plain, 1, -1) + np.roll(plain, 1, -2)) / 3).astype(
        np.uint8
    )
    grey = plain.mean(axis=1, keepdims=True).repeat(3, axis=1).astype(np.uint8)
    before = drift_statistics(plain)
    assert (drift_statistics(soft)["sharpness"] < before["sharpness"]).all()
    assert (drift_statistics(soft)["edges"] < before["edges"]).all()
    assert (drift_statistics(soft)["contrast"] < before["contrast"]).all()
    assert (drift_statistics(grey)["saturation"] < before["saturation"]).all()


def test_diversity_is_within_groups_and_blind_to_grain() -> None:
    two_tones = np.concatenate([flat(0, 1), flat(255, 1), flat(0, 1)])
    assert diversity(two_tones, ["a", "a", "b"])[:2] == pytest.approx([1, 1])
    assert np.isnan(diversity(two_tones, ["a", "a", "b"])[2])
    assert np.isnan(diversity(two_tones)).all()
    layouts = np.stack([flat(40, 1)[0], flat(200, 1)[0]])
    rng = np.random.default_rng(1)
    grain = np.clip(flat(128, 2) + rng.normal(0, 30, (2, 3, 32, 32)), 0, 255).astype(np.uint8)
    assert diversity(grain, [0, 0]).max() < diversity(layouts, [0, 0]).min() / 3


@pytest.mark.parametrize("size", [(1, 1), (5, 9), (17, 64)])
def test_any_size_of_picture(size: tuple[int, int]) -> None:
    odd = np.random.default_rng(0).integers(0, 255, (2, 3, *size)).astype(np.uint8)
    assert all(np.isfinite(v).all() for v in drift_statistics(odd, [0, 0]).values())


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"uint8 images \[n, 3, H, W\]"):
        drift_statistics(np.zeros((2, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="1 group ids for 2 images"):
        drift_statistics(flat(0), groups=[0])


def test_a_benign_run_stays_quiet(run: Path) -> None:
    verdict = judge(read_run(run))
    assert verdict.candidates
    for candidate in verdict.candidates:
        assert len(candidate.checks) == 8
        assert candidate.flagged == [], [c.sentence for c in candidate.flagged]


def test_a_cheating_run_is_flagged_in_plain_words(cheating: Path) -> None:
    verdict = judge(read_run(cheating))
    first, last = verdict.candidates[0], verdict.last
    assert last is not None
    # A third of the way most of the diversity is still there: no flag before its time.
    assert "diversity" not in {c.name for c in first.flagged}
    flagged = {c.name: c.sentence for c in last.flagged}
    assert "gaudier" in flagged["saturation"]
    assert "grown alike" in flagged["diversity"]


@pytest.mark.parametrize(("share", "flagged"), [(0.25, False), (0.45, True)])
def test_a_third_of_the_pictures_outside_is_enough(
    tmp_path: Path, share: float, flagged: bool
) -> None:
    """A model that cheats on one source leaves the average where it was."""
    folder = make_run(tmp_path / "part", Spec(steps=20, eval_every=20))
    read = read_run(folder)
    assert read.base is not None
    values = statistics(list(read.pictures(read.base).values()))["edges"]
    band = base_range(values)
    assert band is not None
    index = folder / "evals/step-000020/index.json"
    data = json.loads(index.read_text())
    for i, sample in enumerate(data["samples"]):
        outside = i < share * len(data["samples"])
        sample["drift"]["edges"] = band[1] * 1.01 if outside else float(np.median(values))
    index.write_text(json.dumps(data))
    last = judge(read_run(folder)).last
    assert last is not None
    edges = last.check("edges")
    assert edges is not None and edges.flagged is flagged
    if flagged:
        assert "of the pictures are busier with edges than 95 % of the base's" in edges.sentence


def gain(name: str, z: float, half: float) -> Gain:
    return Gain(name, 0.0, z, z, z - half, z + half, spread=1.0, won=0.5, tied=0.0, n=48)


def test_the_gap_needs_a_rise_and_a_sure_fall(run: Path) -> None:
    read = read_run(run)

    def flagged(trained: list[Gain], held: list[Gain]) -> bool:
        return next(c for c in checks(read, 1, {}, {}, trained, held) if c.name == "gap").flagged

    up, down, flat = gain("a", 0.8, 0.2), gain("b", -0.6, 0.2), gain("c", 0.0, 0.2)
    assert flagged([up], [down])
    assert flagged([up, down, down], [down]), "one runaway is enough, whatever the mean says"
    assert not flagged([flat], [down]), "everything worse is a bad run, not a cheat"
    assert not flagged([up], [flat])
    assert not flagged([up], [gain("d", -0.05, 0.01)]), "sure, but too small to matter"
    # Clear alone, but not once it is one of eight that were looked at.
    barely = gain("e", -0.22, 0.2)
    assert flagged([up], [barely]) and not flagged([up], [barely, *[flat] * 7])


def test_rewards_without_a_coefficient_were_not_trained_on(tmp_path: Path) -> None:
    """`single` lists five rewards and trains one: the rest are witnesses."""
    folder = make_run(tmp_path / "single", Spec(method="single", steps=20, eval_every=20))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {f"coefficient/{name}": float(name == "clip") for name in REWARDS}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_run(folder)
    others = [name for name in REWARDS if name != "clip"]
    assert read.pursued == ["clip"] and read.heldout == [*others, *HELDOUT]
    verdict = judge(read)
    assert verdict.chosen is not None
    assert [g.name for g in verdict.chosen.trained] == ["clip"]
    assert [g.name for g in verdict.chosen.held] == read.heldout
    assert training(read, 100)["alpha"] == {"clip": [1.0] * 20}
    assert len(training(read, 100)["reward"]) == 5


def test_held_out_falling_while_trained_rises_is_flagged(tmp_path: Path) -> None:
    """One reward trained, everything else held out: the gap shows what it cost."""
    spec = Spec(rewards=("ocr",), heldout=("quality", "clip"), steps=60, eval_every=30, cheat=True)
    last = judge(read_run(make_run(tmp_path / "single", spec))).last
    assert last is not None
    gap = next(c for c in last.checks if c.name == "gap")
    assert gap.flagged and "not trained on" in gap.sentence


def test_blank_pictures_and_missing_statistics(tmp_path: Path) -> None:
    """Without logged statistics the files are measured; a third of them blank raises the flag."""
    from PIL import Image

    folder = make_run(tmp_path / "blank", Spec(steps=20, eval_every=20, prompts=12))
    for index in folder.glob("evals/*/index.json"):
        index.write_text(index.read_text().replace('"drift"', '"other"'))
    for i in range(4):
        Image.new("RGB", (96, 96), (250, 250, 250)).save(folder / f"evals/step-000020/{i:03d}.png")
    read = read_run(folder)
    base, after = read.base, read.trained[0]
    assert base is not None
    before, now = (statistics(list(read.pictures(e).values())) for e in (base, after))
    blank = next(c for c in checks(read, 20, before, now, [], []) if c.name == "blank")
    assert blank.flagged and blank.base == "0 %" and blank.trained == "33 %"


def test_the_range_holds_ninety_percent(run: Path) -> None:
    read = read_run(run)
    assert read.base is not None
    for name, values in statistics(list(read.pictures(read.base).values())).items():
        if name in ("blank", "diversity"):
            continue
        band = base_range(values)
        assert band is not None
        inside = np.mean((values >= band[0]) & (values <= band[1]))
        assert 0.85 <= inside <= 0.95
    assert base_range(np.arange(7.0)) is None
