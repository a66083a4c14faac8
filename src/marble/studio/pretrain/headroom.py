"""How much a generator leaves to be learnt: what is read on its signs, what GenEval finds.

    python -m marble.studio.pretrain.headroom --pipeline build/studio/pipeline \
        --rewards build/studio/rewards --shift 1 2 3
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image

from marble.rewards.geneval import GenEval
from marble.rewards.ocr import OCR

from ..world import load_split, vocabulary
from .generator import Generator, sample_latents, tokenize
from .tokenizer import build_tokenizer
from .vae import decode_latents

WANTED = (0.3, 0.7)


def measure(
    pipeline: Path,
    rewards: Path,
    device: torch.device,
    *,
    shift: float = 1.0,
    prompts: int | None = None,
    sheet: Path | None = None,
) -> dict[str, float]:
    """Mean scores over held-out prompts, one picture each; `sheet` gets the first pictures."""
    tokenizer = build_tokenizer(vocabulary())
    model = Generator(len(tokenizer), eos=1)
    model.load_parts(pipeline)
    model = model.to(device).eval()
    vae: Any = AutoencoderKL.from_pretrained(pipeline / "vae").float().to(device).eval()
    judges = {
        "ocr": OCR(engine="ppocr-rec"),
        "geneval": GenEval("centernet", path=rewards / "detector", device=device),
        "general": None,
    }
    found: dict[str, float] = {}
    shown = []
    for source, judge in judges.items():
        chosen = load_split(source, "test")[:prompts]
        texts = [p["prompt"] for p in chosen]
        ids = tokenize(tokenizer, texts).to(device)
        images = decode_latents(vae, sample_latents(model, ids, seed=7, shift=shift))
        shown.append(images[:48])
        if judge is not None:
            scores = np.asarray(judge.score(images, texts, [p["metadata"] for p in chosen]))
            found[source] = float(scores.mean())
            found[f"{source}, wholly right"] = float((scores == 1).mean())
    if sheet is not None:
        pictures = torch.cat(shown)
        wide = min(16, len(pictures))
        rows = [row for row in pictures.split(wide) if len(row) == wide]
        whole = torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)
        Image.fromarray(whole.permute(1, 2, 0).numpy()).save(sheet)
    return found


def report(found: dict[str, float]) -> str:
    lines = []
    for name, value in found.items():
        inside = WANTED[0] <= value <= WANTED[1]
        mark = "" if "," in name else ("ok" if inside else "MISSED")
        lines.append(f"{'base, ' + name:40s} {value:8.3f}  {mark}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marble.studio.pretrain.headroom")
    parser.add_argument("--pipeline", type=Path, required=True)
    parser.add_argument("--rewards", type=Path, required=True)
    parser.add_argument("--shift", type=float, nargs="+", default=[1.0])
    parser.add_argument("--prompts", type=int, help="of each source; default: all")
    parser.add_argument("--sheet", type=Path, help="where a sheet of pictures goes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    for shift in args.shift:
        found = measure(
            args.pipeline,
            args.rewards,
            torch.device(args.device),
            shift=shift,
            prompts=args.prompts,
            sheet=args.sheet,
        )
        print(json.dumps({"shift": shift} | {k: round(v, 3) for k, v in found.items()}), flush=True)


if __name__ == "__main__":
    main()
