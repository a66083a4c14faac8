"""A sheet of random pictures of the world with their captions, to look at.

python scripts/studio/contact_sheet.py sheet.png --source geneval --split train --seed 0
"""

import argparse
import textwrap

import numpy as np
from PIL import Image, ImageDraw

from marble.studio.world import compose, random_prompt, render

SCALE = 3  # pictures are enlarged this many times
CAPTION_PX = 30


def sheet(
    pictures: list[np.ndarray], captions: list[str], columns: int = 8, scale: int = SCALE
) -> Image.Image:
    """Pictures in rows, each with its caption under it."""
    size = pictures[0].shape[0] * scale
    cell_w, cell_h = size + 8, size + CAPTION_PX + 6
    rows = -(-len(pictures) // columns)
    page = Image.new("RGB", (columns * cell_w, rows * cell_h), "white")
    draw = ImageDraw.Draw(page)
    for i, (picture, caption) in enumerate(zip(pictures, captions)):
        x, y = i % columns * cell_w + 4, i // columns * cell_h + 4
        enlarged = Image.fromarray(picture).resize((size, size), Image.Resampling.NEAREST)
        page.paste(enlarged, (x, y))
        text = "\n".join(textwrap.wrap(caption, width=max(12, size // 6))[:2])
        draw.multiline_text((x, y + size + 2), text, fill="black", spacing=1)
    return page


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
    pictures = [render(compose(prompt, rng)) for prompt in prompts]
    sheet(pictures, [prompt["prompt"] for prompt in prompts]).save(args.out)


if __name__ == "__main__":
    main()
