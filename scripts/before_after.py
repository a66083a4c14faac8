"""Base beside trained on the same held-out prompts and seeds, from a run folder, as one PNG.

python scripts/before_after.py runs/studio-… -o docs/img/before_after.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from marble.evaluation import read_run

SIDE, GAP, TEXT = 96, 6, 26


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/img/before_after.png"))
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1, help="pairs of rows for each source")
    args = parser.parse_args()
    run = read_run(args.run)
    if run.base is None or run.last is None:
        raise SystemExit(
            f"{args.run}: needs an evaluation of the base and one of the trained model"
        )
    before = {entry["id"]: entry for entry in run.base.samples}
    after = run.last.samples
    blocks = []
    for source in dict.fromkeys(entry["source"] for entry in after):
        entries = [entry for entry in after if entry["source"] == source]
        # Evenly spread over the file, not chosen by score.
        count = args.columns * args.rows
        chosen = [entries[i * len(entries) // count] for i in range(min(count, len(entries)))]
        for start in range(0, len(chosen), args.columns):
            blocks.append(chosen[start : start + args.columns])
    width = 60 + args.columns * (SIDE + GAP)
    height = len(blocks) * (2 * SIDE + TEXT + 3 * GAP)
    sheet = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(10)
    for b, block in enumerate(blocks):
        top = b * (2 * SIDE + TEXT + 3 * GAP)
        for row, label in enumerate(("base", "trained")):
            draw.text((4, top + row * (SIDE + GAP) + SIDE // 2), label, fill="black", font=font)
        for column, entry in enumerate(block):
            left = 60 + column * (SIDE + GAP)
            pair = (run.base.folder / before[entry["id"]]["file"], run.last.folder / entry["file"])
            for row, file in enumerate(pair):
                picture = Image.open(file).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                sheet.paste(picture, (left, top + row * (SIDE + GAP)))
            _caption(draw, entry["prompt"], left, top + 2 * (SIDE + GAP), font)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(args.out, optimize=True)
    print(args.out)


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
