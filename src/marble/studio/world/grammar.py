"""Prompts as structure: GenEval-style metadata to text and back, and the facts a prompt holds.

A prompt is a dict with `prompt` (text), `source` ("geneval", "ocr" or "general") and `metadata`:

- geneval: GenEval's own line (`tag`, `include`, `exclude`, `prompt`);
- ocr: `text` (what the sign says), `board` and, if the prompt names one, `color`;
- general: `include` (class, count, color) and `style`;

each with `source` as well, as every reward expects.
"""

import re
from typing import Any

from marble.errors import MarbleError
from marble.studio.world.heldout import Fact, pair
from marble.studio.world.language import (
    BOARDS,
    COLORS,
    NUMBERS,
    PLURALS,
    STYLE_PHRASES,
    sign_phrase,
    styled,
    subject,
)

Prompt = dict[str, Any]
SOURCES: tuple[str, ...] = ("geneval", "ocr", "general")

_SINGULAR = {plural: name for name, plural in PLURALS.items()}
_SIGN = re.compile(rf'an? (?:(\w+) )?({"|".join(BOARDS)}) that says "([A-Z]+)"')


def item(name: str, count: int = 1, color: str | None = None) -> dict[str, Any]:
    """One entry of GenEval's `include` list."""
    out: dict[str, Any] = {"class": name, "count": count}
    if color:
        out["color"] = color
    return out


def named(entry: dict[str, Any]) -> str:
    """The words for one `include` entry."""
    return subject(entry["class"], entry["count"], entry.get("color"))


def geneval_prompt(tag: str, include: list[dict[str, Any]]) -> Prompt:
    """A GenEval prompt and its metadata line.

    As GenEval writes them: a counting prompt excludes one object more than it asks for, and in
    a position prompt the *second* entry carries the relation and is named first.
    """
    line: dict[str, Any] = {"tag": tag, "include": include}
    if tag == "counting":
        line["exclude"] = [{"class": e["class"], "count": e["count"] + 1} for e in include]
    if tag == "position":
        what = f"{named(include[1])} {include[1]['position'][0]} {named(include[0])}"
    else:
        what = " and ".join(named(entry) for entry in include)
    line["prompt"] = f"a photo of {what}"
    return from_geneval_line(line)


def from_geneval_line(line: dict[str, Any]) -> Prompt:
    """A prompt from a line of `*_metadata.jsonl`."""
    metadata = {**line, "source": "geneval"}
    return {"prompt": line["prompt"], "source": "geneval", "metadata": metadata}


def ocr_prompt(text: str, board: str = "sign", color: str | None = None) -> Prompt:
    """A prompt for a sign that says `text`."""
    metadata = {"source": "ocr", "text": text, "board": board}
    if color:
        metadata["color"] = color
    return {"prompt": sign_phrase(text, board, color), "source": "ocr", "metadata": metadata}


def general_prompt(include: list[dict[str, Any]], style: str) -> Prompt:
    """A free caption: one or two subjects in a style."""
    text = styled(" and ".join(named(entry) for entry in include), style)
    metadata = {"source": "general", "include": include, "style": style}
    return {"prompt": text, "source": "general", "metadata": metadata}


def parse(prompt: str, source: str) -> Prompt:
    """The structure of an `ocr` or `general` prompt given as text."""
    if source == "ocr":
        match = _SIGN.fullmatch(prompt)
        if match and match[1] in (None, *COLORS):
            return ocr_prompt(match[3], match[2], match[1])
    if source == "general":
        for style, (before, after) in STYLE_PHRASES.items():
            if prompt.startswith(before) and prompt.endswith(after):
                what = prompt[len(before) : len(prompt) - len(after)]
                include = [_parse_subject(part) for part in what.split(" and ")]
                if all(include):
                    return general_prompt([entry for entry in include if entry], style)
    raise MarbleError(
        f'"{prompt}" is not a prompt of the studio\'s world for source "{source}"; '
        "see the files under marble/studio/prompts for what it can say"
    )


def _parse_subject(text: str) -> dict[str, Any] | None:
    first, _, rest = text.partition(" ")
    color = rest.partition(" ")[0]
    color = color if color in COLORS else ""
    noun = rest.removeprefix(color).strip()
    if first in ("a", "an") and noun in PLURALS:
        return item(noun, 1, color or None)
    if first in NUMBERS and noun in _SINGULAR:
        return item(_SINGULAR[noun], NUMBERS[first], color or None)
    return None


def facts(prompt: Prompt) -> list[Fact]:
    """What this prompt combines (see `heldout`)."""
    meta = prompt["metadata"]
    if prompt["source"] == "ocr":
        return [("word", meta["text"])]
    include = meta["include"]
    out: list[Fact] = [("color", e["class"], e["color"]) for e in include if "color" in e]
    out += [("count", e["class"], str(e["count"])) for e in include if e["count"] > 1]
    if len(include) == 2:
        out.append(pair(include[0]["class"], include[1]["class"]))
    if meta.get("tag") == "single_object":
        out.append(("single", include[0]["class"]))
    if "style" in meta:
        out += [("style", e["class"], meta["style"]) for e in include]
    return out
