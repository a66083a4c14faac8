"""The studio's world: seeded captioned 64×64 pictures of objects, scenes and signs.

    rng = np.random.default_rng(0)
    prompt = random_prompt("geneval", rng)      # {"prompt", "source", "metadata"}
    picture = render(compose(prompt, rng))      # uint8 [64, 64, 3]

Numpy and Pillow only.
"""

from marble.studio.world.compose import compose
from marble.studio.world.language import CLASSES, COLORS, LETTERS, STYLES, tokens, vocabulary
from marble.studio.world.prompts import load_split, random_prompt
from marble.studio.world.render import render
from marble.studio.world.scene import Scene, Sign, Thing

__all__ = [
    "CLASSES",
    "COLORS",
    "LETTERS",
    "STYLES",
    "Scene",
    "Sign",
    "Thing",
    "compose",
    "load_split",
    "random_prompt",
    "render",
    "tokens",
    "vocabulary",
]
