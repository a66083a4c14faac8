"""The studio's world: seeded captioned 64×64 pictures of objects, scenes and signs.

    rng = np.random.default_rng(0)
    prompt = random_prompt("geneval", rng)      # {"prompt", "source", "metadata"}
    picture = render(compose(prompt, rng))      # uint8 [64, 64, 3]

Numpy and Pillow only. What may be said is in `language`, what is kept for testing in `heldout`.
"""

from marble.studio.world.breaking import BREAKS, break_scene, possible_breaks
from marble.studio.world.compose import compose
from marble.studio.world.dataset import generate, truth
from marble.studio.world.degrade import DEGRADATIONS, degrade
from marble.studio.world.grammar import SOURCES, parse
from marble.studio.world.judge import satisfies
from marble.studio.world.language import CLASSES, COLORS, LETTERS, STYLES, tokens, vocabulary
from marble.studio.world.prompts import load_split, random_prompt
from marble.studio.world.render import render
from marble.studio.world.scene import SIZE, Scene, Sign, Thing

__all__ = [
    "BREAKS",
    "CLASSES",
    "COLORS",
    "DEGRADATIONS",
    "LETTERS",
    "SIZE",
    "SOURCES",
    "STYLES",
    "Scene",
    "Sign",
    "Thing",
    "break_scene",
    "compose",
    "degrade",
    "generate",
    "load_split",
    "parse",
    "possible_breaks",
    "random_prompt",
    "render",
    "satisfies",
    "tokens",
    "truth",
    "vocabulary",
]
