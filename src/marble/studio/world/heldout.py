"""Which combinations are held out: a fixed pseudo-random share, the same on every machine.

A *fact* is what a prompt combines: a pair of classes, a class with a colour, a class with a
number, a class with a style, a word on a sign. A training prompt (and a picture to pretrain on)
holds no held-out fact; a test prompt holds at least one.
"""

import hashlib

Fact = tuple[str, ...]

# kind of fact -> share held out
SHARES: dict[str, float] = {
    "pair": 0.15,
    "color": 0.15,
    "count": 0.20,
    "single": 0.30,  # "a photo of a dog": the bare prompt of this class never seen in training
    "style": 0.12,
    "word": 0.22,
}


def is_held_out(kind: str, *what: str) -> bool:
    """Whether this fact is kept for testing. Depends on nothing but its arguments."""
    digest = hashlib.blake2s("/".join((kind, *what)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < SHARES[kind] * 2**64


def pair(a: str, b: str) -> Fact:
    """The fact that two classes stand together, in any order."""
    return ("pair", *sorted((a, b)))


def any_held_out(facts: list[Fact]) -> bool:
    """Whether at least one of the facts is held out."""
    return any(is_held_out(*fact) for fact in facts)
