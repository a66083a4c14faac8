"""Random prompts and their scenes, shared by the tests of the world."""

from collections.abc import Iterator

import numpy as np

from marble.studio.world import SOURCES, Scene, compose, random_prompt
from marble.studio.world.grammar import Prompt


def draws(n: int, seed: int = 0) -> Iterator[tuple[Prompt, Scene, np.random.Generator]]:
    """`n` prompts of every source, train and test in turn, each with a scene."""
    rng = np.random.default_rng(seed)
    for source in SOURCES:
        for i in range(n):
            prompt = random_prompt(source, rng, ("train", "test")[i % 2])
            yield prompt, compose(prompt, rng), rng
