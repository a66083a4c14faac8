"""Runs in the toy world of `marble.study.toy`, seconds each."""

from pathlib import Path

from rich.console import Console

from marble.recipe import Recipe, load_recipe
from marble.study.toy.__main__ import build
from marble.training.run import train

RECIPE = Path(__file__).parents[1] / "studies/recipes/toy.yaml"


def run_toy(folder: Path, *words: str, resume: bool = False, console: Console | None = None):
    """Trains as the toy recipe with `words` says; its recipe."""
    recipe: Recipe = load_recipe(str(RECIPE), list(words))
    train(
        recipe,
        folder,
        resume=resume,
        device="cpu",
        console=console or Console(quiet=True),
        check=lambda recipe: None,
        build=build,
    )
    return recipe
