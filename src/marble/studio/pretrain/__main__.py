"""`python -m marble.studio.pretrain`: makes the studio's weights from nothing (`make studio`).

Pictures, autoencoder and generator (trained, then distilled) come from one process, the reward
models (with their acceptance table) from a second one on the same GPU. About fifteen minutes on an
H200; `--smoke` runs every line, tiny, on a CPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL

from ..world import generate, vocabulary
from . import headroom
from .common import Budget
from .distil import distil
from .flow import train_generator
from .generator import Generator, tokenize
from .pipeline import save_pipeline
from .tokenizer import build_tokenizer
from .vae import decode_latents, encode_latents, train_vae

# source → (share of the pictures, share of captions that are wrong in one thing, as on the web)
SOURCES = {"geneval": (0.45, 0.45), "ocr": (0.35, 0.65), "general": (0.2, 0.3)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m marble.studio.pretrain", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("build/studio"), help="where the folders go"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--pictures", type=int, default=300_000)
    parser.add_argument("--vae-seconds", type=float, default=90)
    parser.add_argument("--generator-seconds", type=float, default=400)
    parser.add_argument("--distil-seconds", type=float, default=125)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument(
        "--resume", type=Path, help="a former --out: keep its autoencoder, go on with its generator"
    )
    parser.add_argument("--only-generator", action="store_true", help="leave the rewards alone")
    parser.add_argument("--shift", type=float, default=1.0, help="of the flow-match scheduler")
    parser.add_argument("--rewards-seconds", type=float, default=400)
    parser.add_argument(
        "--smoke", action="store_true", help="every line once, tiny, meaningless weights"
    )
    args = parser.parse_args()
    if args.resume and args.resume.resolve() == args.out.resolve():
        parser.error("--resume and --out must differ: --out gets an autoencoder of its own")
    if args.smoke:
        args.pictures, args.vae_seconds, args.generator_seconds = 600, 15, 15
        args.distil_seconds, args.batch = 5, 64
    args.out.mkdir(parents=True, exist_ok=True)
    for old in ("vae", "vae.part"):  # the reward models wait for the new one
        shutil.rmtree(args.out / old, ignore_errors=True)
    rewards: list[subprocess.Popen] = []

    def start_rewards() -> None:
        if not args.only_generator:
            rewards.append(_start_rewards(args))

    try:
        _generator(args, before_training=start_rewards)
    except BaseException:
        for process in rewards:
            process.terminate()  # it would wait for the autoencoder for ever
        raise
    if any(process.wait() != 0 for process in rewards):
        sys.exit("studio: training the reward models failed; see its output above")
    if rewards:
        some = 16 if args.smoke else None
        found = headroom.measure(
            args.out / "pipeline",
            args.out / "rewards",
            torch.device(args.device),
            shift=args.shift,
            prompts=some,
            sheet=args.out / "base.png",
        )
        print(headroom.report(found), flush=True)


def _start_rewards(args: argparse.Namespace) -> subprocess.Popen:
    """The reward models train beside the generator: neither fills the GPU alone. They draw their
    pictures while the autoencoder, which they wait for, is trained."""
    command = [sys.executable, "-m", "marble.studio.pretrain.rewards"]
    command += ["--out", str(args.out / "rewards"), "--vae", str(args.out / "vae")]
    command += ["--device", args.device, "--seconds", str(args.rewards_seconds)]
    return subprocess.Popen(command + (["--smoke"] if args.smoke else []))


def _pictures(count: int, workers: int) -> tuple[torch.Tensor, list[str], torch.Tensor]:
    """Pictures, their captions, and which of them are right."""
    images, prompts, right = [], [], []
    for seed, (source, (share, sloppy)) in enumerate(SOURCES.items()):
        n = round(count * share)
        data = generate(n, seed=seed, workers=workers, sloppy=sloppy, sources={source: 1.0})
        images.append(torch.from_numpy(data["images"]).permute(0, 3, 1, 2))
        prompts += data["prompts"]
        right.append(~torch.from_numpy(data["broken"]))
    return torch.cat(images).contiguous(), prompts, torch.cat(right)


def _generator(args: argparse.Namespace, before_training: Callable[[], None]) -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device, started = torch.device(args.device), time.perf_counter()
    workers = max(1, (os.cpu_count() or 1) - 2)
    images, prompts, right = _pictures(args.pictures, workers)
    before_training()
    images = images.to(device)
    print(f"{len(images)} pictures in {time.perf_counter() - started:.0f} s", flush=True)

    words = vocabulary()
    tokenizer = build_tokenizer(words)

    if args.resume:
        vae = AutoencoderKL.from_pretrained(args.resume / "vae").to(device).eval()
    else:
        vae = train_vae(images, device, Budget(args.vae_seconds))
    vae.save_pretrained(args.out / "vae.part")
    (args.out / "vae.part").rename(args.out / "vae")  # whole from its first moment
    print(f"autoencoder after {time.perf_counter() - started:.0f} s", flush=True)
    latents = encode_latents(vae, images, device)
    ids = tokenize(tokenizer, prompts).to(device)
    empty, start = tokenize(tokenizer, [""]).to(device), None
    if args.resume:
        start = Generator(len(tokenizer), eos=1)
        start.load_parts(args.resume / "trained")  # not yet distilled
    model = train_generator(
        latents,
        ids,
        empty,
        len(tokenizer),
        device,
        args.generator_seconds,
        right=right,
        batch=args.batch,
        start=start,
    )
    print(f"generator after {time.perf_counter() - started:.0f} s", flush=True)
    save_pipeline(args.out / "trained", model, vae, words, shift=args.shift)  # to distil anew from

    model = distil(
        model,
        tokenizer,
        device,
        args.distil_seconds,
        samples=args.pictures // 4,
        batch=args.batch,
    )

    held = images[:64].cpu()
    again = decode_latents(vae, latents[:64])
    np.savez_compressed(args.out / "autoencoder.npz", real=held.numpy(), again=again.numpy())
    save_pipeline(args.out / "pipeline", model, vae, words, shift=args.shift)
    print(f"generator done after {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
