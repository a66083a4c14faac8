"""Prompt folders, ready for a recipe."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from marble.errors import MarbleError
from marble.prompts import geneval, ocr

KINDS = ("geneval", "ocr")
COUNTS = {"geneval": 20_000, "ocr": 10_000}
OCR_TEST = 200
TEST_REPEATS = 4
"""The public file holds every test prompt so many times: four pictures of each."""
FROM = {
    "geneval": "train: made from templates; test: GenEval's 553 public prompts, four times each.",
    "ocr": "train and test: made from templates. The public text-rendering prompts are in "
    "dataset/ocr of https://github.com/yifan123/flow_grpo.",
}
GENERAL = (
    "dataset/pickscore of https://github.com/yifan123/flow_grpo, or text files of your own with "
    "one prompt per line"
)


@dataclass(frozen=True)
class Written:
    files: list[Path]
    train: int
    test: int
    about: str


def write_prompts(
    kind: str, out: Path, *, count: int | None = None, seed: int = 0, force: bool = False
) -> Written:
    """Writes `train` and `test` into `out`, the same for the same seed."""
    if kind not in KINDS:
        raise MarbleError(
            f"{kind}: prompts are made for {' and '.join(KINDS)}; for general ones take {GENERAL}"
        )
    rng = random.Random(f"marble {kind} {seed}")
    number = COUNTS[kind] if count is None else count
    if kind == "geneval":
        names = ["train_metadata.jsonl", "test_metadata.jsonl"]
        test = geneval.test_lines() * TEST_REPEATS
        parts = [[json.dumps(line) for line in part] for part in (geneval.make(number, rng), test)]
    else:
        names = ["train.txt", "test.txt"]
        held_out = ocr.make(OCR_TEST, random.Random("marble ocr test"))
        avoid = {ocr.text_of(prompt).lower() for prompt in held_out}
        parts = [ocr.make(number, rng, avoid), held_out]
    files = [out / name for name in names]
    there = [file for file in files if file.exists()]
    if there and not force:
        raise MarbleError(f"{there[0]}: exists already; --force writes over it, --out elsewhere")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file, lines in zip(files, parts):
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise MarbleError(f"{out}: cannot be written ({error.strerror}); choose another") from None
    return Written(files, len(parts[0]), len(parts[1]), FROM[kind])
