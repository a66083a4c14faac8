"""Base beside trained on the same held-out prompts and seeds, from a run folder, as one PNG.

python scripts/before_after.py runs/studio-… -o docs/img/before_after.png
marble eval src/marble/studio/assets/trained --recipe studio --out longer
python scripts/before_after.py runs/studio-… --also "studio-gpu=longer" --label "make train"

docs/img/sliders.png is of a run of `studio-steer`, evaluated at each setting:

marble eval runs/steered --prefer ocr=0 --out ocr-0
python scripts/before_after.py runs/steered --label "all at 1" --also "ocr 0=ocr-0" -o sheet.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from marble.evaluation import read_run

SIDE, GAP, TEXT, MARGIN, APART = 96, 6, 26, 64, 10
FINE = Image.Resampling.LANCZOS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/img/before_after.png"))
    parser.add_argument("--columns", type=int, default=4, help="prompts of each source")
    parser.add_argument("--label", default="trained", help="of the run's row")
    parser.add_argument(
        "--also", action="append", default=[], help="LABEL=FOLDER of `marble eval --out FOLDER`"
    )
    args = parser.parse_args()
    run = read_run(args.run)
    if run.base is None or run.last is None:
        raise SystemExit(
            f"{args.run}: needs an evaluation of the base and one of the trained model"
        )
    after = run.last.samples
    rows = {"base": _files(run.base.folder, run.base.samples)}
    rows[args.label] = _files(run.last.folder, after)
    for word in args.also:
        label, _, folder = word.partition("=")
        samples = json.loads((Path(folder) / "index.json").read_text())["samples"]
        if [entry["prompt"] for entry in samples] != [entry["prompt"] for entry in after]:
            raise SystemExit(f"{folder}: other prompts than {args.run}; give eval its recipe")
        rows[label] = _files(Path(folder), samples)
    sheet = drawn(rows, chosen(after, args.columns))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(args.out, optimize=True)
    print(args.out)


def chosen(samples: list[dict[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    """So many samples of each source: evenly spread over the file, not chosen by score."""
    found = []
    for source in dict.fromkeys(entry["source"] for entry in samples):
        entries = [entry for entry in samples if entry["source"] == source]
        found.append([entries[i * len(entries) // count] for i in range(min(count, len(entries)))])
    return found


def drawn(rows: dict[str, dict[int, Path]], sources: list[list[dict[str, Any]]]) -> Image.Image:
    """A row for each model, the sources side by side, prompts below."""
    font = ImageFont.load_default(10)
    margin = max(MARGIN, *(8 + round(font.getlength(label)) for label in rows))
    width = margin + sum(len(entries) * (SIDE + GAP) + APART for entries in sources)
    sheet = Image.new("RGB", (width, len(rows) * (SIDE + GAP) + TEXT + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for row, label in enumerate(rows):
        draw.text((4, row * (SIDE + GAP) + SIDE // 2), label, fill="black", font=font)
    left = margin
    for entries in sources:
        for entry in entries:
            for row, files in enumerate(rows.values()):
                picture = Image.open(files[entry["id"]]).resize((SIDE, SIDE), FINE)
                sheet.paste(picture, (left, row * (SIDE + GAP)))
            _caption(draw, entry["prompt"], left, len(rows) * (SIDE + GAP), font)
            left += SIDE + GAP
        left += APART
    return sheet


def _files(folder: Path, samples: list[dict[str, Any]]) -> dict[int, Path]:
    return {entry["id"]: folder / entry["file"] for entry in samples}


def _caption(
    draw: ImageDraw.ImageDraw, text: str, left: int, top: int, font: ImageFont.FreeTypeFont
) -> None:
    """The prompt in at most two lines under its column."""
    lines, line = [], ""
    for word in text.split():
        trial = f"{line} {word}".strip()
        if draw.textlength(trial, font=font) > SIDE and line:
            lines.append(line)
            line = word
        else:
            line = trial
    for i, part in enumerate([*lines, line][:2]):
        draw.text((left, top + 11 * i), part, fill="#444444", font=font)


if __name__ == "__main__":
    main()
