"""The text a prompt asks for, and how far what was read is from it."""

from __future__ import annotations

import re
import unicodedata

#: Opening mark → closing mark. Pairs of different marks nest.
_PAIRS = {"“": "”", "„": "“", "«": "»", "「": "」", "『": "』", "《": "》", "‹": "›"}
_DOUBLES = '"＂'
_MARKS = "\"'“”‘’＂"
_ESCAPED = re.compile(rf"\\+([{_MARKS}])")
_SINGLE = re.compile(r"(?<!\w)['‘’]([^'‘’]+(?:['’]\w+[^'‘’]*)*)['’](?!\w)")
# Escaped marks are set aside as private-use characters while the plain ones are matched.
_HIDDEN = {mark: chr(0xE000 + i) for i, mark in enumerate(_MARKS)}
_REVEAL = str.maketrans({hidden: mark for mark, hidden in _HIDDEN.items()})


def quoted_text(prompt: str) -> str | None:
    """The first quoted text of a prompt, or None.

    Double quotes may be straight, curly, guillemets or corner brackets, and may be nested: the
    outermost pair counts. A backslash before a quote makes it part of the text, unless all
    quotes have one (a prompt that was escaped as a whole). Single quotes count when there are no
    double ones; an apostrophe inside a word is never one.
    """
    plain = _ESCAPED.sub(lambda match: _HIDDEN[match.group(1)], prompt)
    unescaped = _ESCAPED.sub(r"\1", prompt)
    found = _outermost(plain) or _outermost(unescaped) or _single(unescaped)
    return found.translate(_REVEAL) if found else None


def _single(prompt: str) -> str | None:
    match = _SINGLE.search(prompt)
    return _non_empty(match.group(1)) if match else None


def _non_empty(text: str) -> str | None:
    return text if normalise(text) else None


def _outermost(prompt: str) -> str | None:
    """What stands between the first opening mark and the closing mark that matches it."""
    start = 0
    while start < len(prompt):
        mark, end = prompt[start], None
        if mark in _DOUBLES:
            end = next((i for i in range(start + 1, len(prompt)) if prompt[i] in _DOUBLES), None)
        elif mark in _PAIRS:
            end = _closing(prompt, start)
        if end is not None and _non_empty(prompt[start + 1 : end]):
            return prompt[start + 1 : end]
        start = (start if end is None else end) + 1
    return None


def _closing(prompt: str, start: int) -> int | None:
    opening, closing = prompt[start], _PAIRS[prompt[start]]
    depth = 0
    for i in range(start, len(prompt)):
        if prompt[i] == opening:
            depth += 1
        elif prompt[i] == closing:
            depth -= 1
            if depth == 0:
                return i
    return None


def normalise(text: str) -> str:
    """Compatibility form, without case and without white space."""
    for _ in range(2):  # folding, and closing up the gaps, can make new compositions
        text = unicodedata.normalize("NFKC", text).casefold()
        text = "".join(unicodedata.normalize("NFKC", text).split())
    return unicodedata.normalize("NFKC", text)


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance: insertions, deletions and substitutions from a to b."""
    if len(a) < len(b):
        a, b = b, a
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def match_score(target: str, read: str) -> float:
    """1 if the normalised target is contained in what was read, else 1 − distance/length, ≥ 0."""
    target, read = normalise(target), normalise(read)
    if target in read:
        return 1.0
    return max(0.0, 1 - edit_distance(target, read) / len(target))
