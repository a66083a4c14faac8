"""64 pictures of the untouched studio model on held-out prompts, beside their prompts.

python scripts/studio/base_sheet.py -o docs/img/studio-base.png

Prompts, seeds, sampler and steps are those of `marble eval base --recipe studio`, evenly spread
over each source: nothing is chosen by its look or its score. A list of them goes beside the PNG.
"""

import argparse
from pathlib import Path

from contact_sheet import sheet

from marble.data import Sample
from marble.models.build import build_adapter
from marble.recipe import load_recipe
from marble.training.processes import Processes
from marble.training.rollout import draw
from marble.training.setup import evaluation_samples

COUNTS = {"geneval": 24, "ocr": 16, "general": 24}
HEADINGS = {
    "geneval": "geneval: objects, counts, colours, places",
    "ocr": "ocr: words the model has never seen spelled",
    "general": "general: free captions",
}


def chosen(samples: list[Sample]) -> list[Sample]:
    """So many of each source as `COUNTS` says, evenly spread over it."""
    picked = []
    for source, count in COUNTS.items():
        own = [sample for sample in samples if sample.prompt.source == source]
        picked += [own[i * len(own) // count] for i in range(min(count, len(own)))]
    return picked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/img/studio-base.png"))
    parser.add_argument("overrides", nargs="*", help="changes to the recipe, e.g. model.path=…")
    args = parser.parse_args()
    recipe = load_recipe("studio", args.overrides)
    samples = chosen(evaluation_samples(recipe))
    adapter = build_adapter(recipe, Processes(None).device)
    settings = recipe.rollout
    _, images = draw(
        adapter,
        samples,
        steps=recipe.eval.steps or settings.steps,
        sampler=recipe.eval.sampler or settings.sampler,
        guidance=recipe.eval.guidance or settings.guidance,
    )
    sections: dict[str, list] = {}
    for sample, image in zip(samples, images):
        captioned = (image.permute(1, 2, 0).numpy(), sample.prompt.text)
        sections.setdefault(HEADINGS[sample.prompt.source], []).append(captioned)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    sheet(sections).save(args.out, optimize=True)
    lines = [f"{s.prompt.source}\tseed {s.seed}\t{s.prompt.text}" for s in samples]
    args.out.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    print(args.out)


if __name__ == "__main__":
    main()
