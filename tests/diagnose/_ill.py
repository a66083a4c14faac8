"""Runs made ill: real trainings in the toy world, each with one thing wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from marble.diagnose import diagnose
from marble.recipe import load_recipe
from marble.study.toy.__main__ import build
from marble.training.run import train

ROOT = Path(__file__).parents[2]
TOY = ROOT / "studies" / "recipes" / "toy.yaml"
REWARDS = '''
import numpy as np
from marble.study.toy.world import numbers, target


def error(images, texts, part):
    return np.abs(numbers(images)[:, part] - np.array([target(t) for t in texts])[:, part])


def hard(images, texts, metadata):
    """Right in six numbers at once, which hardly ever happens."""
    return (error(images, texts, slice(0, 6)) < 0.45).all(1).astype(float)


def easy(images, texts, metadata):
    """Wrong only where a number is far off."""
    return (error(images, texts, slice(0, 2)) < 1.5).all(1).astype(float)


def outliers(images, texts, metadata):
    """A fair score, but for one picture in forty, which gets an enormous one."""
    fair = 1 - (error(images, texts, slice(6, 8)) ** 2).mean(1)
    lucky = images.flatten(1).double().sum(1).numpy() % 40 == 0
    return fair + 1000 * lucky


def white(images, texts, metadata):
    """Best where every number is as large as it can be: one picture, whatever the prompt."""
    return numbers(images).mean(1)
'''
HELDOUT = (
    "rewards.heldout=[{name: strict, reward: 'marble.study.toy.world:strict', sources: [count]}]"
)
TAME = "rewards.heldout=[{name: tame, reward: 'marble.study.toy.world:tame'}]"
SOUND = [
    "eval.images_per_prompt=2",
    "optim.lr=6e-3",
    "log.samples_every=20",
    "train.steps=40",
    HELDOUT,
]
"""Common to all: a run whose real rewards rise, 40 steps, with tables of scores."""


@dataclass(frozen=True)
class Ill:
    """Overrides, and what a diagnosis has to name."""

    overrides: tuple[str, ...]
    ailment: str | None
    reward: str | None = None


def _add(name: str, reward: str, more: str = "") -> str:
    return f"rewards.add=[{{name: {name}, reward: '{reward}'{more}}}]"


def cases(folder: Path) -> dict[str, Ill]:
    file = folder / "ill_rewards.py"
    file.write_text(REWARDS)
    synthetic = "marble.rewards.synthetic"
    world = "marble.study.toy.world"
    plain = (
        f"rewards.train=[{{name: similarity, reward: '{world}:similarity'}}, "
        f"{{name: preference, reward: '{world}:preference'}}]"
    )
    opposite = "options: {reward: 'marble.study.toy.world:similarity', scale: -1}"
    return {
        "healthy, method marble": Ill((plain, "balance.method=marble"), None),
        "healthy": Ill((plain,), None),
        "constant": Ill((plain, _add("same", f"{synthetic}:Constant")), "constant score", "same"),
        "noise": Ill((plain, _add("dice", f"{synthetic}:Noise")), "mostly noise", "dice"),
        "noise, method marble": Ill(
            (plain, _add("dice", f"{synthetic}:Noise"), "balance.method=marble"),
            "mostly noise",
            "dice",
        ),
        "hard": Ill((plain, _add("hard", f"{file}:hard")), "prompts too hard", "hard"),
        "easy": Ill((plain, _add("easy", f"{file}:easy")), "prompts too easy", "easy"),
        "outliers": Ill(
            (plain, _add("outliers", f"{file}:outliers"), "balance.method=uniform"),
            "clipped advantages",
            "outliers",
        ),
        "small step": Ill((plain, "optim.lr=1e-6"), "too small a step"),
        "large step": Ill((plain, "optim.lr=0.3"), "too large a step"),
        "v_old": Ill(
            (plain, "rollout.old_decay={initial: 0.999, rate: 0, cap: 0.999}"),
            "v_old stands still",
        ),
        "opposed": Ill(
            (
                plain,
                _add("contrary", f"{synthetic}:Altered", f", {opposite}"),
                "balance.method=uniform",
            ),
            "opposed by other rewards",
            "contrary",
        ),
        "opposed, method marble": Ill(
            (
                plain,
                _add("contrary", f"{synthetic}:Altered", f", {opposite}"),
                "balance.method=marble",
            ),
            "rewards that cancel out",
        ),
        "gamed": Ill(
            ("balance.method=single", "balance.reward=vivid", "optim.lr=4e-3", TAME),
            "held-out judges fall",
            "vivid",
        ),
        "collapse": Ill(
            (
                f"rewards.train=[{{name: white, reward: '{file}:white'}}]",
                "optim.lr=1e-2",
                "objective.kl=0",
                "rollout.old_decay={initial: 0, rate: 0, cap: 0}",
            ),
            "collapse",
        ),
        "little weight": Ill(
            (
                plain,
                _add("vivid", f"{world}:vivid", ", weight: 0.0001"),
                "balance.method=fixed",
            ),
            "little weight",
            "vivid",
        ),
    }


def make(ill: Ill, out: Path, seed: int = 0) -> Path:
    recipe = load_recipe(str(TOY), [*SOUND, f"train.seed={seed}", *ill.overrides])
    quiet = Console(quiet=True)
    train(recipe, out, device="cpu", console=quiet, check=lambda recipe: None, build=build)
    return out


@dataclass(frozen=True)
class Told:
    """What `marble diagnose` said first of a run that was made ill."""

    case: str
    seed: int
    ailment: str | None
    reward: str | None
    said_ailment: str | None
    said_reward: str | None
    said: str

    @property
    def right(self) -> bool:
        return (self.ailment, self.reward) == (self.said_ailment, self.said_reward)


def told(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> Iterator[Told]:
    """Every case, trained and diagnosed."""
    for name, ill in cases(folder).items():
        for seed in seeds:
            out = folder / f"{name.replace(' ', '-')}-{seed}"
            try:
                make(ill, out, seed)
            except Exception as error:  # a run that diverges is diagnosed as far as it came
                print(name, error, file=sys.stderr)
            found = diagnose(out).findings
            first = (
                (found[0].ailment, found[0].reward, found[0].said) if found else (None, None, "")
            )
            yield Told(name, seed, ill.ailment, ill.reward, *first)
