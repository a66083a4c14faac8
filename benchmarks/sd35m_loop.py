"""The whole `sd35m-5rewards-1gpu` run at full size with random weights: time and memory by phase.

    python benchmarks/sd35m_loop.py --out benchmarks/results/sd35m_loop_h200.json
    python benchmarks/sd35m_loop.py --tiny          # the same code on a CPU, in a minute

Writes a Stable Diffusion 3.5 Medium pipeline and full-size reward models (CLIP-L, CLIP-H, HPS's
ViT-H, Mask2Former on Swin-S) as local folders, trains five optimiser steps of which two solve for
the balance, in two runs (the second resumes the first's checkpoint), and loads the exported LoRA
with diffusers alone. Batch sizes, precision, checkpointing and offloading are the recipe's; the
epoch is cut to a few pictures, which changes times a step and not the peak.
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
from diffusers import StableDiffusion3Pipeline

from marble.evaluation import read_jsonl
from marble.models.sd3 import SD3Adapter
from marble.recipe import Recipe, load_recipe
from marble.rewards import RewardSet
from marble.rewards.base import Reward
from marble.training import loop, metrics, recorder, setup
from marble.training.run import train
from sd35m_folders import write_pipeline, write_prompts, write_rewards

RECIPE = "sd35m-5rewards-1gpu"
TINY_OVERRIDES = [
    "model.resolution=64",
    "model.max_sequence_length=16",
    "rewards.geneval.options.short_side=64",
    "rewards.geneval-strict.options.short_side=64",
    "rollout.steps=4",
    "train.batch_size=4",
]


class Meter:
    """Seconds and peak memory of named phases; a phase inside another counts in both."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.phases: dict[str, list[dict[str, float]]] = {}
        self._peaks: list[tuple[int, int]] = []
        """(allocated, reserved) bytes of the phases that are open, the outermost first."""

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._mark()
        self._peaks.append((0, 0))
        started = time.perf_counter()
        try:
            yield
        finally:
            self._mark()
            peak = self._peaks.pop()
            if self._peaks:  # the outer phase has seen this peak too
                self._peaks[-1] = _higher(self._peaks[-1], peak)
            entry = {"seconds": time.perf_counter() - started}
            if self.cuda:
                entry["peak_gb"], entry["reserved_gb"] = peak[0] / 1e9, peak[1] / 1e9
                entry["left_gb"] = torch.cuda.memory_allocated() / 1e9
            self.phases.setdefault(name, []).append(entry)

    def _mark(self) -> None:
        """Books the peak since the last mark to the phase that is running, and starts anew."""
        if not self.cuda:
            return
        torch.cuda.synchronize()
        if self._peaks:
            seen = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            self._peaks[-1] = _higher(self._peaks[-1], seen)
        torch.cuda.reset_peak_memory_stats()

    def around(self, owner: Any, attribute: str, name: str | Callable[..., str]) -> Any:
        """A patch that books every call of a method as a phase."""
        original = getattr(owner, attribute)
        meter = self

        def measured(*args: Any, **kwargs: Any) -> Any:
            with meter(name if isinstance(name, str) else name(*args, **kwargs)):
                return original(*args, **kwargs)

        return patch.object(owner, attribute, measured)

    def summary(self) -> dict[str, dict[str, Any]]:
        out = {}
        for name, calls in self.phases.items():
            seconds = [call["seconds"] for call in calls]
            out[name] = {
                "calls": len(calls),
                "seconds_total": round(sum(seconds), 3),
                "seconds_median": round(sorted(seconds)[len(seconds) // 2], 4),
            }
            if self.cuda:
                for key in ("peak_gb", "reserved_gb"):
                    out[name][key] = round(max(call[key] for call in calls), 3)
                out[name]["left_gb"] = round(calls[-1]["left_gb"], 3)
        return out


def _higher(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), max(a[1], b[1])


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


def rewards_alone(recipe: Recipe, meter: Meter, device: torch.device, count: int) -> dict[str, Any]:
    """Each reward by itself on one rollout batch of its resolution, after a first call."""
    side = recipe.model.resolution or 64
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, side, side), generator=g, dtype=torch.uint8)
    out = {}
    sets = setup.build_rewards(recipe, device)
    for reward in (r for group in sets if group for r in group.rewards):
        meta = {
            "source": "geneval",
            "tag": "single_object",
            "include": [{"class": "dog", "count": 1}],
            "prompt": 'a dog and "TEA"',
        }
        for warm in (True, False):
            with meter(f"reward {reward.name}, {'first call' if warm else f'{count} pictures'}"):
                scores = score(reward, images.clone(), meta)
        out[reward.name] = {"mean": float(scores.mean()), "std": float(scores.std())}
    return out


def score(reward: Reward, images: torch.Tensor, meta: dict[str, Any]) -> torch.Tensor:
    n = len(images)
    return torch.as_tensor(reward.score(images, [meta["prompt"]] * n, [meta] * n)).double()


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


def run(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    device, tiny = torch.device(args.device), args.tiny
    meter = Meter(device)
    started = time.perf_counter()
    if args.limit_gb and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(args.limit_gb * 1e9 / total, device)
    torch.manual_seed(0)
    with meter("write random weights"):
        parameters = write_pipeline(root / "sd35m", device, tiny=tiny, full_t5=args.t5 == "full")
        places = write_rewards(root / "rewards", device, tiny=tiny)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
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
        *(TINY_OVERRIDES if tiny else []),
    ]
    if not args.ocr:
        overrides.append("rewards.drop=ocr")
    out = root / "run"
    with measured_run(meter):
        first = load_recipe(RECIPE, [*overrides, "train.steps=3"])
        with meter("run: 3 steps"):
            train(first, out, device=str(device))
        _empty()
        whole = load_recipe(RECIPE, [*overrides, "train.steps=5"])
        with meter("run: resume, 2 more steps"):
            outcome = train(whole, out, resume=True, device=str(device))
        _empty()
    assert outcome.finished and outcome.step == 5
    lora = next((out / "checkpoints").glob("step-000005")) / "lora"
    loaded = stock_diffusers(root / "sd35m", lora, device, meter)
    _empty()
    alone = rewards_alone(whole, meter, device, whole.rollout.batch_size)
    rows = read_jsonl(out / "metrics.jsonl")
    phases = meter.summary()
    runs = [p for name, p in phases.items() if name.startswith("run:") and meter.cuda]
    return {
        "what": f"{RECIPE} at full size, random weights: five optimiser steps, resumed once",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if meter.cuda else "CPU",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
        },
        "setup": {
            "tiny": tiny,
            "t5": args.t5,
            "ocr": args.ocr,
            "transformer_parameters": parameters,
            "memory_limit_gb": args.limit_gb,
            "samples_per_epoch": whole.samples_per_epoch,
            "timesteps_per_sample": whole.timesteps_per_sample,
            "recipe": whole.model_dump(mode="json", include={"model", "rollout", "train"}),
        },
        "peak_gb": max((p["peak_gb"] for p in runs), default=None),
        "peak_reserved_gb": max((p["reserved_gb"] for p in runs), default=None),
        "phases": phases,
        "rewards_alone": alone,
        "steps": [{k: v for k, v in row.items() if _told(k)} for row in rows],
        "exported_lora": loaded,
        "seconds": time.perf_counter() - started,
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
    print(f"peak of the run: {result['peak_gb']} GB; LoRA in diffusers: {result['exported_lora']}")
    print(f"{result['seconds']:.0f} s in all")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--work", type=Path, help="folder for weights and run; default: temporary")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--prompts", type=int, default=6, help="prompts an epoch")
    parser.add_argument("--images", type=int, default=4, help="pictures a prompt")
    parser.add_argument("--timesteps", type=int, default=4, help="timesteps trained on a picture")
    parser.add_argument("--t5", choices=("small", "full"), default="small")
    parser.add_argument("--limit-gb", type=float, help="let the process have no more device memory")
    parser.add_argument("--tiny", action="store_true", help="tiny models: a smoke test")
    args = parser.parse_args(arguments)
    args.ocr = all(importlib.util.find_spec(name) for name in ("rapidocr", "onnxruntime"))
    if args.tiny:
        args.device, args.prompts, args.images, args.timesteps = "cpu", 3, 2, 1
    return args


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    diffusers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as temporary:
        result = run(args, args.work or Path(temporary))
    show(result)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
