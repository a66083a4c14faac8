"""Guidance put into the weights: the base draws unguided what its guided teacher draws.

Reinforcement learning here runs without guidance, as DiffusionNFT does, and a small model without
guidance is blurry. Two directions are known to lead from a model to a better one: away from what it
would draw without the prompt (classifier-free guidance), and away from what it drew when it was
trained less (autoguidance, Karras et al. 2024). The student is trained on

    v* = v(x, c) + (w − 1) · [v(x, c) − v(x, ∅)] + (a − 1) · [v(x, c) − v_weaker(x, c)]

which, unlike a flow-matching target, has no sampling noise: a thousand small batches are enough, so
this step is affordable on a CPU. `GUIDES` holds (w, a) by source; more for signs, whose letters the
base learns last. Captions are right here, without the errors that pretraining mixes in.

    python -m marble.studio.pretrain.refine --from build/studio/pipeline \
        --weaker build/studio/weaker --out build/refined
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor

from ..world import generate, vocabulary
from .common import Budget, WeightAverage, autocast, batches, cosine_lr
from .generator import LONG, SHORT, Generator
from .pipeline import save_pipeline
from .tokenizer import MAX_LENGTH, build_tokenizer
from .vae import encode_latents

GUIDES = {"ocr": (3.0, 3.0), "geneval": (1.15, 1.4), "general": (1.5, 2.0)}
SHARES = {"ocr": 0.5, "geneval": 0.3, "general": 0.2}
DROPPED = 0.05  # captions left out, so that guidance can still be asked for
LONG_EVERY, LONG_BATCH = 8, 16


@torch.no_grad()
def guided(
    teacher: Generator,
    weaker: Generator,
    x: Tensor,
    sigma: Tensor,
    ids: Tensor,
    empty: Tensor,
    guides: Tensor,
) -> Tensor:
    """v* of the module's docstring; `guides` [n, 2] holds w and a of each sample."""
    w, a = (g.view(-1, 1, 1, 1) for g in guides.unbind(1))
    with autocast(x.device):
        v = teacher(x, sigma, ids).float()
        unconditional = teacher(x, sigma, empty.expand_as(ids)).float()
        less = weaker(x, sigma, ids).float()
    return v + (w - 1) * (v - unconditional) + (a - 1) * (v - less)


def refine(
    model: Generator,
    weaker: Generator,
    latents: Tensor,
    ids: Tensor,
    guides: Tensor,
    empty: Tensor,
    device: torch.device,
    budget: Budget,
    *,
    teacher: Generator | None = None,
    batch: int = 64,
    peak_lr: float = 4e-4,
) -> Generator:
    """Trains `model` to draw what `teacher` (by default the model as it is now) draws under
    guidance. Returns the averaged weights."""
    teacher = copy.deepcopy(model if teacher is None else teacher)
    teacher = teacher.to(device).eval().requires_grad_(False)
    weaker = weaker.to(device).eval().requires_grad_(False)
    model = model.to(device)
    average = WeightAverage([model], decay=0.98)
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.99), weight_decay=0)
    empty = empty.to(device)
    shown: float | None = None
    for step, index in enumerate(batches(len(latents), batch, 3, latents.device)):
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        long = step % LONG_EVERY == LONG_EVERY - 1
        if long:
            index = index[:LONG_BATCH]
        x_0, tokens = latents[index].to(device).float(), ids[index].to(device)
        n, strength = len(x_0), guides[index].to(device)
        dropped = torch.rand(n, 1, device=device) < DROPPED
        tokens = torch.where(dropped, empty, tokens)
        strength = torch.where(dropped, torch.ones_like(strength), strength)
        sigma = torch.sigmoid(torch.randn(n, device=device) * 1.1 + 0.3)
        s = sigma.view(-1, 1, 1, 1)
        x_t = (1 - s) * x_0 + s * torch.randn_like(x_0)
        target = guided(teacher, weaker, x_t, sigma, tokens, empty, strength)
        with autocast(device):
            v = model(x_t, sigma, tokens, LONG if long else SHORT)
        loss = F.mse_loss(v.float(), target)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        average.update(step)
        shown = loss.item() if shown is None else shown + 0.05 * (loss.item() - shown)
        if step % 50 == 0:
            print(f"refine {step:6d}  {done:4.0%}  loss {shown:.4f}", flush=True)
    average.copy_to_live()
    return model.eval()


def pictures(
    count: int, vae: Any, tokenizer: Any, device: torch.device, seed: int = 100
) -> tuple[Tensor, Tensor, Tensor]:
    """Latents, token ids and guidance strengths of pictures whose captions are right."""
    latents, ids, guides = [], [], []
    workers = max(1, (os.cpu_count() or 1) - 2)
    for source, share in SHARES.items():
        n = round(count * share)
        data = generate(n, seed=seed, workers=workers, sources={source: 1.0})
        images = torch.from_numpy(data["images"]).permute(0, 3, 1, 2).contiguous().to(device)
        latents.append(encode_latents(vae, images, device))
        ids.append(tokenize(tokenizer, data["prompts"]).to(device))
        guides.append(torch.tensor(GUIDES[source]).repeat(n, 1).to(device))
    return torch.cat(latents), torch.cat(ids), torch.cat(guides)


def tokenize(tokenizer: Any, prompts: list[str]) -> Tensor:
    padded = tokenizer(prompts, padding="max_length", max_length=MAX_LENGTH, truncation=True)
    return torch.tensor(padded["input_ids"])


def _load(folder: Path, vocabulary_size: int) -> Generator:
    model = Generator(vocabulary_size, eos=1)
    model.load_parts(folder)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marble.studio.pretrain.refine")
    parser.add_argument("--from", dest="start", type=Path, required=True, help="pipeline folder")
    parser.add_argument("--weaker", type=Path, required=True, help="the same, trained less")
    parser.add_argument("--student", type=Path, help="go on from this one; default: --from")
    parser.add_argument("--out", type=Path, required=True, help="where the better one goes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pictures", type=int, default=30_000)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    device, started = torch.device(args.device), time.perf_counter()
    words = vocabulary()
    tokenizer = build_tokenizer(words)
    teacher, weaker, model = (
        _load(folder, len(tokenizer))
        for folder in (args.start, args.weaker, args.student or args.start)
    )
    vae: Any = AutoencoderKL.from_pretrained(args.start / "vae").float().to(device).eval()
    latents, ids, guides = pictures(args.pictures, vae, tokenizer, device)
    print(f"{len(latents)} pictures in {time.perf_counter() - started:.0f} s", flush=True)
    empty = tokenize(tokenizer, [""])
    model = refine(
        model,
        weaker,
        latents,
        ids,
        guides,
        empty,
        device,
        Budget(args.seconds),
        teacher=teacher,
        batch=args.batch,
    )
    save_pipeline(args.out, model, vae, words, shift=1.0)
    print(f"refined after {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
