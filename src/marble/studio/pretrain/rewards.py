"""Trains every reward model of the studio: CLIP, preference, aesthetic, detector, held-out ones.

``python -m marble.studio.pretrain.rewards --out FOLDER`` does it alone, with a world of its own;
``make studio`` starts it beside the generator.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from transformers import AutoTokenizer

from marble.rewards.realism import Realism

from ..world import CLASSES, COLORS, vocabulary
from .common import Budget
from .reward_acceptance import acceptance, report
from .reward_clip import new_clip, save_clip, save_head, train_aesthetic, train_clip, train_pick
from .reward_data import Pictures, from_world, reconstruct, with_errors
from .reward_detector import train_detector
from .reward_realism import train_realism
from .tokenizer import save_tokenizer

#: Shares of the time budget.
SHARES = {
    "detector": 0.14,
    "clip": 0.34,
    "aesthetic": 0.05,
    "pick": 0.13,
    "clip2": 0.29,
    "realism": 0.05,
}


def train_reward_models(
    out_dir: Path,
    train: Pictures,
    held_out: Pictures,
    tokenizer_folder: Path,
    *,
    seconds: float = 240.0,
    steps: int = 10**9,
    vae: Any = None,
    batch: int = 1024,
) -> dict[str, float]:
    """Train, save under ``out_dir`` and measure on held-out pictures; returns the table.

    With ``vae`` (the studio's ``AutoencoderKL``) the models also learn from pictures as a
    generator would decode them. ``steps`` caps every stage (for a quick trial).
    """
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    disturb = None
    if vae is not None:
        vae = vae.to(train.device).eval()
        train.soften(vae)
        held_out.soften(vae)
        disturb = partial(disturbed, vae)

    def budget(stage: str) -> Budget:
        return Budget(SHARES[stage] * seconds, steps)

    torch.manual_seed(7)
    out_dir.mkdir(parents=True, exist_ok=True)
    detector = train_detector(
        train, list(CLASSES), list(COLORS), budget("detector"), batch=batch // 2
    )
    detector.save(out_dir / "detector")

    clip = new_clip(tokenizer, width=128, layers=5, text_width=96, text_layers=3, projection=128)
    clip = train_clip(clip, train, budget("clip"), disturb=disturb, batch=batch)
    save_clip(clip, tokenizer_folder, out_dir / "clip")

    pick = train_pick(clip, train, budget("pick"), disturb=disturb, batch=batch // 2)
    save_clip(pick, tokenizer_folder, out_dir / "pick")
    # On pick's embedding, which knows damage when it sees it; clip's is half blind to it.
    head = train_aesthetic(pick, train, budget("aesthetic"), disturb=disturb, batch=batch)
    save_head(head, out_dir / "aesthetic" / "head.safetensors")

    torch.manual_seed(8)
    clip2 = new_clip(
        tokenizer,
        width=96,
        layers=5,
        text_width=64,
        text_layers=3,
        projection=96,
        activation="quick_gelu",
    )
    clip2 = train_clip(
        clip2, train, budget("clip2"), disturb=disturb, batch=batch, seed=22, name="clip2"
    )
    save_clip(clip2, tokenizer_folder, out_dir / "clip2")

    realism = train_realism(train, budget("realism"), disturb=disturb, batch=batch // 2)
    Realism.save(realism, out_dir / "realism")
    print(f"reward models trained in {time.perf_counter() - began:.0f} s", flush=True)

    return measure(out_dir, held_out)


def measure(folder: Path, held_out: Pictures) -> dict[str, float]:
    """Prints the acceptance table of the models in a folder and keeps it beside them."""
    table = acceptance(folder, held_out, device=held_out.device)
    print(report(table), flush=True)
    (folder / "acceptance.json").write_text(json.dumps(table, indent=1) + "\n")
    return table


def disturbed(vae: Any, x: torch.Tensor, severity: torch.Tensor) -> torch.Tensor:
    """Pictures whose latents are off, as an undertrained generator's are."""
    return reconstruct(vae, x, 0.2 + 0.7 * severity)


def main() -> None:
    name = "python -m marble.studio.pretrain.rewards"
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=Path("build/studio/rewards"))
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--pictures", type=int, default=250_000)
    add("--seconds", type=float, default=240.0, help="time to train, all models together")
    add("--vae", type=Path, help="folder of the studio's autoencoder; waits until it is there")
    add("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    add("--measure", action="store_true", help="train nothing: only the acceptance table of --out")
    add("--smoke", action="store_true", help="every line once, tiny, meaningless weights")
    args = parser.parse_args()
    unseen, steps, batch = 2048, 10**9, 1024
    if args.smoke:
        args.pictures, unseen, steps, batch = 512, 128, 2, 32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device, began = torch.device(args.device), time.perf_counter()
    tokenizer_folder = args.out / "tokenizer"
    save_tokenizer(vocabulary(), tokenizer_folder)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    if args.measure:
        measure(args.out, from_world(*with_errors(unseen, 102, 1, "test"), tokenizer, device))
        shutil.rmtree(tokenizer_folder)
        return
    # All pictures first: the world forks processes, which must happen before CUDA starts.
    worlds = [
        with_errors(args.pictures, 101, args.workers, "train"),
        with_errors(unseen, 102, 1, "test"),
    ]
    train, held_out = (from_world(right, wrong, tokenizer, device) for right, wrong in worlds)
    print(
        f"reward data: 2 × {len(train)} pictures, {time.perf_counter() - began:.0f} s", flush=True
    )
    while args.vae and not args.vae.is_dir():
        time.sleep(1)
    train_reward_models(
        args.out,
        train,
        held_out,
        tokenizer_folder,
        seconds=args.seconds,
        steps=steps,
        vae=AutoencoderKL.from_pretrained(args.vae) if args.vae else None,
        batch=batch,
    )
    shutil.rmtree(tokenizer_folder)


if __name__ == "__main__":
    main()
