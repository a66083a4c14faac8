"""Prompts that ask for written text: a place, a surface, and words between double quotes.

Texts are of one to eight words, in several spellings, with figures and without. The text of a test
prompt is in no training prompt.
"""

from __future__ import annotations

import random

SCENES = {
    "A quiet street in the rain": ("a shop window", "a street sign", "a brass plate"),
    "A busy market at noon": ("a chalkboard", "a price tag", "a striped awning"),
    "A small bakery in the morning": ("a paper bag", "a cake", "a chalkboard menu"),
    "A railway station at night": ("a departure board", "a neon sign", "a ticket"),
    "A mountain trail in autumn": ("a wooden signpost", "a stone marker", "a flag"),
    "A child's bedroom": ("a birthday card", "a crayon drawing", "a wooden toy"),
    "A laboratory bench": ("a glass jar", "a warning label", "a notebook page"),
    "A concert hall": ("a poster", "a banner over the stage", "a programme"),
    "A harbour at sunrise": ("the bow of a boat", "a crate", "a painted wall"),
    "A library with tall shelves": ("the spine of a book", "a library card", "a note"),
    "A garage workshop": ("a metal toolbox", "a licence plate", "a tin sign"),
    "A desk by the window": ("a computer screen", "a sticky note", "a coffee mug"),
    "A snowy village square": ("a lantern", "a wooden stall", "a knitted scarf"),
    "A desert road": ("a billboard", "a rusty petrol pump", "a motel sign"),
    "A classroom": ("a blackboard", "a lunch box", "a globe's stand"),
    "A spaceship's bridge": ("a control panel", "a helmet", "a warning light"),
}
LETTERING = (
    "in bold letters",
    "in neat handwriting",
    "in glowing neon",
    "in gold letters",
    "in white chalk",
    "in faded paint",
    "in large capital letters",
    "in a playful font",
    "stencilled",
    "carved",
)
FORMS = (
    '{scene}, with {surface} that reads "{text}" {style}.',
    '{scene}. On {surface}, {style}, it says "{text}".',
    'A close-up of {surface} with the words "{text}" {style}.',
    'A photo of {surface} that says "{text}".',
    '"{text}" written {style} on {surface}; behind it, {place}.',
)
_QUALITIES = (
    "Bright Brave Calm Clever Copper Daily Distant Early Electric Fresh Gentle Golden Grand Happy "
    "Hidden Honest Little Lucky Midnight Modern Northern Open Paper Patient Quiet Rapid Royal "
    "Second Silent Silver Simple Southern Stone Sunny Velvet Wild Winter Wooden Yellow"
)
_THINGS = (
    "Anchor Apple Bakery Bear Bell Bicycle Bridge Candle Castle Cedar Circus Cloud Clock Compass "
    "Coffee Corner Dragon Engine Falcon Festival Forest Garden Ginger Harbor Honey Island Kitchen "
    "Ladder Lantern Library Lion Market Meadow Mirror Mountain Museum Music Ocean Orchard Owl "
    "Parade Pepper Piano Pocket Radio River Robot Rocket Sailor Station Summer Theater Tiger Tower "
    "Train Valley Violin Wagon Whale Window"
)
_DEEDS = (
    "Ask At the Desk,Bring Your Own Cup,Do Not Feed the Birds,Find Your Way Home,Follow the Light,"
    "Keep the Door Shut,Listen to the Rain,Look Twice,Mind Your Head,Never Stop Asking,"
    "No Entry After Dark,Please Wait Here,Read Slowly,Return by Friday,Ring the Bell Twice,"
    "Save the Last Dance,Speak Softly,Start Again Tomorrow,Take One Only,Turn Left at the Oak,"
    "Walk Do Not Run,Wash Before Use,Watch Your Step"
)
QUALITIES, THINGS, DEEDS = _QUALITIES.split(), _THINGS.split(), _DEEDS.split(",")


def make(count: int, rng: random.Random, avoid: set[str] | None = None) -> list[str]:
    """`count` different prompts whose texts are all different and none of `avoid`."""
    taken = set(avoid or ())
    made: list[str] = []
    while len(made) < count:
        text = draw_text(rng)
        if text.lower() in taken:
            continue
        taken.add(text.lower())
        made.append(_prompt(text, rng))
    return made


def text_of(prompt: str) -> str:
    return prompt.split('"')[1]


def draw_text(rng: random.Random) -> str:
    """One to eight words; a fifth in capitals, a fifth in small letters."""
    quality, thing, other = rng.choice(QUALITIES), *rng.sample(THINGS, 2)
    number, year = rng.randint(2, 99), rng.randint(1870, 2049)
    hour = f"{rng.randint(1, 12)} {rng.choice(('AM', 'PM'))}"
    text = rng.choice(
        (
            thing,
            f"{thing} {number}",
            f"{quality} {thing}",
            f"The {quality} {thing}",
            f"{thing} & {other}",
            f"{thing} and {other} Since {year}",
            f"Platform {number} to {quality} {thing}",
            f"Open Until {hour}",
            f"{quality} {thing} Opens at {hour}",
            f"Welcome to {quality} {thing} {other}",
            f"{rng.choice(DEEDS)}",
            f"{quality} {thing}: {rng.choice(DEEDS)}",
            f"{number} Days of {quality} {thing}",
            f"Only ${number} per {thing}",
            f"{thing} {other} Society Meeting on Day {number}",
        )
    )
    spelling = rng.random()
    return text.upper() if spelling < 0.2 else text.lower() if spelling < 0.4 else text


def _prompt(text: str, rng: random.Random) -> str:
    scene = rng.choice(list(SCENES))
    return rng.choice(FORMS).format(
        scene=scene,
        place=scene[0].lower() + scene[1:],
        surface=rng.choice(SCENES[scene]),
        text=text,
        style=rng.choice(LETTERING),
    )
