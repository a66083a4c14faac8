"""The whole `sd35m-5rewards-1gpu` run at full size with random weights: time and memory by phase.

    python benchmarks/sd35m_loop.py --out benchmarks/results/sd35m_loop_h200.json
    python benchmarks/sd35m_loop.py --tiny          # the same code on a CPU, in a minute

Writes a Stable Diffusion 3.5 Medium pipeline and full-size reward models (CLIP-L, CLIP-H, HPS's
ViT-H, Mask2Former on Swin-S) as local folders, trains five optimiser steps of which two solve for
the balance, in two runs (the second resumes the first's checkpoint), and loads the exported LoRA
with diffusers alone. Batch sizes, precision, checkpointing and offloading are the recipe's; the
epoch is cut to a few pictures, which changes times a step, and the peak by the latents alone: two
whole epochs' of the recipe are 0.6 GB.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import importlib.util
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import diffusers
import torch
import transformers
from diffusers import StableDiffusion3Pipeline

from marble.evaluation import read_jsonl
from marble.models.sd3 import SD3Adapter
from marble.recipe import Recipe, load_recipe
from marble.rewards import RewardSet
from marble.training import loop, metrics, recorder, setup
from marble.training.memory import fitted
from marble.training.run import train
from sd35m_folders import write_pipeline, write_prompts, write_rewards
from sd35m_meter import Meter
from sd35m_scores import invariance, rewards_alone

RECIPE = "sd35m-5rewards-1gpu"
TINY_OVERRIDES = [
    "model.resolution=64",
    "model.max_sequence_length=16",
    "rewards.geneval.options.short_side=64",
    "rewards.geneval-strict.options.short_side=64",
    "rollout.steps=4",
    "eval.steps=4",
    "train.batch_size=4",
]


@contextlib.contextmanager
def measured_run(meter: Meter) -> Iterator[None]:
    """Books every part of a run: loading, prompts, sampling, decoding, rewards, steps, writing."""

    def step_kind(trainer: Any, *_: Any, **__: Any) -> str:
        refresh = trainer.balancer.harmoniser.is_refresh(trainer.step)
        return "optimiser step, refresh" if refresh else "optimiser step, ordinary"

    with contextlib.ExitStack() as stack:
        for owner, attribute, name in (
            (setup, "build_rewards", "load rewards"),
            (setup, "build_adapter", "load pipeline"),
            (SD3Adapter, "_encode", "encode prompts"),
            (SD3Adapter, "sample", "sample latents"),
            (SD3Adapter, "decode", "decode pictures"),
            (RewardSet, "score", "rewards, all"),
            (loop.Trainer, "rollout", "rollout with rewards"),
            (loop.Trainer, "_optimise", step_kind),
            (recorder.Recorder, "epoch", "checkpoint and evaluation"),
        ):
            stack.enter_context(meter.around(owner, attribute, name))
        if importlib.util.find_spec("tensorboard") is None:
            stack.enter_context(patch.object(metrics, "_TensorBoard", MagicMock()))
        yield


def stock_diffusers(
    pipeline: Path, lora: Path, device: torch.device, meter: Meter
) -> dict[str, Any]:
    """Diffusers alone: loads pipeline and LoRA, and draws with and without it."""
    absent = {
        f"{part}{n}": None for part in ("text_encoder", "tokenizer") for n in ("", "_2", "_3")
    }
    with meter("stock diffusers"):
        pipe = StableDiffusion3Pipeline.from_pretrained(
            pipeline, dtype=torch.bfloat16, local_files_only=True, **absent
        ).to(device)
        pipe.set_progress_bar_config(disable=True)
        config = pipe.transformer.config
        g = torch.Generator().manual_seed(0)
        embeds = torch.randn(1, 93, config.joint_attention_dim, generator=g)
        pooled = torch.randn(1, config.pooled_projection_dim, generator=g)
        side = 64 if config.sample_size < 64 else 512

        def draw() -> torch.Tensor:
            return pipe(
                prompt_embeds=embeds.to(device, torch.bfloat16),
                pooled_prompt_embeds=pooled.to(device, torch.bfloat16),
                guidance_scale=1.0,
                num_inference_steps=4,
                height=side,
                width=side,
                output_type="pt",
                generator=torch.Generator().manual_seed(1),
            ).images.float()

        plain = draw()
        pipe.load_lora_weights(lora)
        trained = draw()
        count = sum(p.numel() for n, p in pipe.transformer.named_parameters() if "lora_" in n)
        pipe.unload_lora_weights()
        again = draw()
    return {
        "lora_parameters": count,
        "pictures_finite": bool(trained.isfinite().all()),
        "pictures_change_with_lora": float((trained - plain).abs().mean()),
        "pictures_change_after_unloading": float((again - plain).abs().mean()),
    }


def run(args: argparse.Namespace, root: Path, note: Callable[[dict[str, Any]], None]) -> None:
    """Everything, in order; `note` gets what is known after each part, should a later one fail."""
    device, tiny = torch.device(args.device), args.tiny
    meter = Meter(device)
    started = time.perf_counter()

    def known(**more: Any) -> None:
        note({**more, "phases": meter.summary(), "seconds": time.perf_counter() - started})

    if args.limit_gb and meter.cuda:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(args.limit_gb * 1e9 / total)
    torch.manual_seed(0)
    with meter("write random weights"):
        parameters = write_pipeline(root / "sd35m", device, tiny=tiny, full_t5=args.t5 == "full")
        places = write_rewards(root / "rewards", device, tiny=tiny)
        _empty()
    overrides = [
        f"model.path={root / 'sd35m'}",
        *places,
        *write_prompts(root / "prompts", 8),
        f"data.prompts_per_epoch={args.prompts}",
        f"data.images_per_prompt={args.images}",
        f"train.timesteps_fraction={args.timesteps / (4 if tiny else 25) + 1e-6}",
        "balance.every=3",
        "eval.prompts=1",
        "eval.every=0",
        "train.checkpoint_every=3",
        "log.samples_every=0",
        *args.ocr,
        *(TINY_OVERRIDES if tiny else []),
    ]
    whole = load_recipe(RECIPE, [*overrides, "train.steps=5"])
    known(setup=_setup(args, whole, parameters))
    out = root / "run"
    with measured_run(meter):
        with meter("run: 3 steps"):
            train(load_recipe(RECIPE, [*overrides, "train.steps=3"]), out, device=str(device))
        _empty()
        known(memory=_memory(meter))
        with meter("run: resume, 2 more steps"):
            outcome = train(whole, out, resume=True, device=str(device))
        _empty()
    assert outcome.finished and outcome.step == 5
    rows = read_jsonl(out / "metrics.jsonl")
    steps = [{k: v for k, v in row.items() if _told(k)} for row in rows]
    known(memory=_memory(meter), steps=steps)
    lora = next((out / "checkpoints").glob("step-000005")) / "lora"
    known(exported_lora=stock_diffusers(root / "sd35m", lora, device, meter))
    _empty()
    count = fitted(whole, device, 1).rollout.batch_size
    known(rewards_alone=rewards_alone(whole, meter, device, count))
    _empty()
    with meter("scores by batch size and device"):
        changes = invariance(whole, device, count)
    known(score_changes=changes)


def _setup(args: argparse.Namespace, recipe: Recipe, parameters: int) -> dict[str, Any]:
    settings = recipe.model_dump(mode="json", include={"model", "rollout", "train"})
    settings["model"]["path"] = "random weights"  # the folder is temporary
    return {
        "tiny": args.tiny,
        "t5": args.t5,
        "ocr": [entry.options for entry in recipe.rewards.train if entry.name == "ocr"] or "absent",
        "transformer_parameters": parameters,
        "memory_limit_gb": args.limit_gb,
        "samples_per_epoch": recipe.samples_per_epoch,
        "timesteps_per_sample": recipe.timesteps_per_sample,
        "recipe": settings,
    }


def _memory(meter: Meter) -> dict[str, float] | None:
    """Of the two runs: allocated, held by torch, and that with what CUDA itself takes."""
    if not meter.cuda:
        return None
    runs = [p for name, p in meter.summary().items() if name.startswith("run:")]
    free, total = torch.cuda.mem_get_info()
    context = (total - free - torch.cuda.memory_reserved()) / 1e9
    reserved = max(p["reserved_gb"] for p in runs)
    return {
        "peak_gb": max(p["peak_gb"] for p in runs),
        "peak_reserved_gb": reserved,
        "cuda_itself_gb": round(context, 3),
        "peak_on_device_gb": round(reserved + context, 3),
    }


def _told(key: str) -> bool:
    return key in ("step", "loss", "kl") or key.startswith(
        ("time/", "reward/", "alpha/", "harmony")
    )


def _empty() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def show(result: dict[str, Any]) -> None:
    for name, phase in result["phases"].items():
        memory = f"{phase['peak_gb']:7.2f} GB peak" if "peak_gb" in phase else ""
        print(f"{phase['seconds_total']:8.2f} s in {phase['calls']:3d} {memory}  {name}")
    for key in ("memory", "exported_lora", "score_changes"):
        print(f"{key}: {result.get(key)}")
    print(f"{result['seconds']:.0f} s in all")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--work", type=Path, help="folder for weights and run; default: temporary")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=6, help="prompts an epoch")
    parser.add_argument("--images", type=int, default=4, help="pictures a prompt")
    parser.add_argument("--timesteps", type=int, default=4, help="timesteps trained on a picture")
    parser.add_argument("--t5", choices=("small", "full"), default="full", help="small: one layer")
    parser.add_argument("--limit-gb", type=float, help="let the process have no more device memory")
    parser.add_argument("--tiny", action="store_true", help="tiny models: a smoke test")
    args = parser.parse_args(arguments)
    args.ocr = ocr_overrides()
    if args.tiny:
        args.device, args.prompts, args.images, args.timesteps = "cpu", 3, 2, 1
    return args


def ocr_overrides() -> list[str]:
    """What this environment leaves of the OCR reward: all, its recogniser alone, or nothing."""

    def has(name: str) -> bool:
        return importlib.util.find_spec(name) is not None

    if not (has("rapidocr") and has("onnxruntime")):
        return ["rewards.drop=ocr"]
    return [] if has("cv2") else ["rewards.ocr.options.engine=ppocr-rec"]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    diffusers.utils.logging.set_verbosity_error()
    result: dict[str, Any] = {
        "what": f"{RECIPE} at full size, random weights: five optimiser steps, resumed once",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if args.device != "cpu" else "CPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
            "transformers": transformers.__version__,
        },
        "complete": False,
    }

    def note(more: dict[str, Any]) -> None:
        result.update(more)
        if args.out is not None:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=2) + "\n")

    with tempfile.TemporaryDirectory() as temporary:
        run(args, args.work or Path(temporary), note)
    note({"complete": True})
    show(result)
    return result


if __name__ == "__main__":
    main()
