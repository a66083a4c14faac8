"""Words for signs: a list of everyday English words, part of it held out, and made-up words."""

import numpy as np

from marble.studio.world.heldout import is_held_out

_WORDS = """
acorn air album amber anchor ant apple april apron arch arrow art atlas autumn avenue
bacon bagel bake baker ball bamboo band barn basil basket bay beach bean bear bee bell bench
berry bike bird bloom boat bold book boots bottle bowl box bread breeze brew brick bridge bright
broom bubble bunny bus butter button
cabin cactus cafe cake calm camel camera camp candle candy canoe car carrot castle cat chalk
cheese chef cherry chess cider circus city clock cloud clover coast cocoa coffee coin comet cook
cookie cool coral corn cotton cozy crab cream creek crown cup curry
daisy dance dawn deer desk diner dish dock dog donut door dove dragon dream drum duck dune dusk
eagle early earth east easy echo egg elbow elk elm enjoy enter exit extra
fair family farm fast fern ferry field fig film fire fish flag flour flower flute fog forest fork
fox free fresh friend frog frost fruit fudge fun
galaxy game garden gate gem gift ginger glad globe glow gold golf good goose grape grass green
grin guide guitar
happy harbor harp hat hazel heart hello help hen herb hero hike hill home honey hope horse hotel
house hug
ice icon idea ink inn iris iron island ivory ivy
jacket jade jam jar jazz jelly jet jewel jog joke jolly joy juice july jump june jungle
kayak kettle key kind king kite kitten kiwi knit koala
lace ladder lake lamb lamp lane laugh lava leaf lemon letter level light lily lime lion local
lotus love lucky lunar lunch
magic mango map maple market marsh meadow melon menu metro milk mint mirror mocha moon
moss motel motor mouse movie mud muffin mug museum music
navy nectar nest news nice night noodle north nova nut
oak oasis oat ocean olive omelet onion open opera orbit orchid otter oven owl oyster
paint palace palm panda paper parade park parrot party pasta path patio peace peach pear pearl
pecan penny pepper piano picnic pie pilot pine pink pizza planet plant plum poem polar polite
pond pony poppy potato puzzle
quail queen quick quiet quilt quiz
rabbit radio rain ranch raven ready relax ribbon rice ride ring river road robin robot rocket
roof rose ruby rug rustic
sail salad salon salt sand school sea seed shell ship shoe shop silk silver sky sleep smile snow
soap socks soda soup south spice spring spoon spruce star stone stove studio sugar summer sun
sunny surf swan sweet swim
table taco tango taxi tea teapot temple tennis tent thyme tiger toast today tomato topaz tower
town toy trail train travel tree trout tulip tuna turtle
umber uncle unity upbeat urban
valley van vase velvet verse video view villa vine violet violin vital vivid voice
waffle wagon walk walnut warm water wave west whale wheat wheel willow wind window winter wish
wolf wonder wood wool world
yard yarn year yellow yes yoga young yummy
zebra zen zero zinc zone zoo
"""


def _tidy(text: str) -> tuple[str, ...]:
    words = sorted({word.upper() for word in text.split()})
    return tuple(word for word in words if 3 <= len(word) <= 6)


WORDS: tuple[str, ...] = _tidy(_WORDS)
TRAIN_WORDS: tuple[str, ...] = tuple(w for w in WORDS if not is_held_out("word", w))
HELD_OUT_WORDS: tuple[str, ...] = tuple(w for w in WORDS if is_held_out("word", w))
_HELD_OUT = frozenset(HELD_OUT_WORDS)

# Syllables, and fragments that no sign should show.
_PARTS = {
    "onset": "B C D F G H J K L M N P QU R S T V W X Y Z BL BR CH CL CR DR FL FR GL GR PL PR SH SL",
    "vowel": "A E I O U Y AI EA EE IE OA OO OU",
    "coda": "B C D F G K L M N P R S T V W X Y Z CK LD LT MP ND NG NK NT RD RK RN SH ST TH",
    "avoid": "UCK HIT UNT ASS SEX TIT NAZ NIG FAG CUM COC DIC PIS SLU RAPE WHO",
}
_ONSETS, _VOWELS, _CODAS, _AVOID = (tuple(text.split()) for text in _PARTS.values())


def _pick(rng: np.random.Generator, parts: tuple[str, ...]) -> str:
    return parts[int(rng.integers(len(parts)))]


def made_up_word(rng: np.random.Generator) -> str:
    """A pronounceable string of 3 to 6 capital letters that is not a held-out word.

    Spelling has to be learned from more strings than a word list holds.
    """
    while True:
        length = int(rng.integers(3, 7))
        word = _pick(rng, _ONSETS) if rng.random() < 0.8 else ""
        while len(word) < length:
            word += _pick(rng, _VOWELS)
            if rng.random() < 0.75:
                word += _pick(rng, _CODAS)
            if len(word) < length and rng.random() < 0.3:
                word += _pick(rng, _ONSETS)
        word = word[:length]
        if word not in _HELD_OUT and not any(part in word for part in _AVOID):
            return word
