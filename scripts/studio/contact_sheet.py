"""A sheet of random pictures of the world with their captions, to look at.

python scripts/studio/contact_sheet.py sheet.png --source geneval --split train --seed 0
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from marble.studio.world import compose, random_prompt, render

SIDE = 160  # pictures are enlarged to this many pixels
GAP, MARGIN = 14, 24
LINE, HEADING = 17, 40
INK, PALE = "#222222", "#777777"

Captioned = tuple[np.ndarray, str]


def sheet(sections: Mapping[str, Sequence[Captioned]], columns: int = 8) -> Image.Image:
    """Pictures in rows, each with its whole caption under it; a heading over each section."""
    font, title = ImageFont.load_default(14), ImageFont.load_default(20)
    measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    rows: list[tuple[str, list[tuple[np.ndarray, list[str]]]]] = []
    for heading, pictures in sections.items():
        wrapped = [(picture, _lines(measure, text, font)) for picture, text in pictures]
        for start in range(0, len(wrapped), columns):
            rows.append((heading if start == 0 else "", wrapped[start : start + columns]))
    heights = [
        (HEADING if heading else 0) + SIDE + LINE * max(len(lines) for _, lines in row) + 2 * GAP
        for heading, row in rows
    ]
    page = Image.new(
        "RGB", (2 * MARGIN + columns * (SIDE + GAP) - GAP, 2 * MARGIN + sum(heights)), "white"
    )
    draw = ImageDraw.Draw(page)
    y = MARGIN
    for (heading, row), height in zip(rows, heights):
        top = y
        if heading:
            draw.text((MARGIN, top), heading, fill=PALE, font=title)
            top += HEADING
        for i, (picture, lines) in enumerate(row):
            x = MARGIN + i * (SIDE + GAP)
            enlarged = Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            page.paste(enlarged, (x, top))
            for n, line in enumerate(lines):
                draw.text((x, top + SIDE + 6 + n * LINE), line, fill=INK, font=font)
        y += height
    return page


def _lines(draw: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont) -> list[str]:
    """`text` broken between words so that every line is as narrow as a picture."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and draw.textlength(longer, font=font) <= SIDE:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--source", default="geneval", choices=["geneval", "ocr", "general"])
    parser.add_argument("--split", default="train", choices=["train", "test"])
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    prompts = [random_prompt(args.source, rng, args.split) for _ in range(args.count)]
    pictures = [(render(compose(prompt, rng)), prompt["prompt"]) for prompt in prompts]
    sheet({args.source: pictures}).save(args.out)


if __name__ == "__main__":
    main()
