"""Pictures per GPU-second of the public loop and of ours, with random weights, in one process."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from marble.bench.errors import errors_from_fp32, gradient_errors
from marble.bench.public import BATCH, public_adapter, switched_by_hand
from marble.bench.random_model import copy_of, open_pipeline
from marble.bench.report import Report
from marble.bench.side import Side, check_objective
from marble.bench.summary import MANY, counts, summary
from marble.bench.timing import (
    alternating,
    clean,
    host_waits,
    matmul_tflops,
    milliseconds,
    peak_gb,
)
from marble.duration import reward_seconds
from marble.errors import MarbleError
from marble.memory import estimate
from marble.models.family import Family
from marble.recipe import Recipe, load_recipe
from marble.training.memory import fitted
from marble.training.processes import Processes


def bench_loop(
    name: str,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    repeats: int = 3,
    memory_limit: float | None = None,
    out: Path | None = None,
    quick: bool = False,
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measures both loops in turn, part by part, and puts steps together from the parts.

    The model has the recipe's true size; if its files are not here, its weights are random. What a
    run also keeps on the device (reward models, text encoders, latents) is taken as empty memory.
    Rewards are not run: their seconds are those that `marble doctor` counts with. quick: our
    loop alone, times and memory, for a model that is too large for more.
    """
    if torch.cuda.is_available():  # both loops fill the memory: one's blocks must fit the other
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    on = Processes(device).device
    if memory_limit is not None:
        _limit(memory_limit, on)
    recipe = load_recipe(name, overrides, trust=trust)
    check_objective(recipe)
    recipe = fitted(recipe, on, 1)
    report = Report(out, say)
    report.note(**about(recipe, on, memory_limit))
    with report.part("model"):
        bench = Bench(recipe, on, repeats, report, alone=quick)
    if "model" not in report.found["failures"]:
        bench.run()
    report.note(complete=not report.found["failures"])
    return report.found


FEW, MORE = 1, 3
"""Micro-batches of two steps whose difference is timed."""
LARGE = 4_000_000_000
"""Weights of a denoiser that is not opened in fp32 as well."""


class Bench:
    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        repeats: int,
        report: Report,
        *,
        alone: bool = False,
    ) -> None:
        self.recipe, self.device, self.repeats, self.report = recipe, device, repeats, report
        pipeline, family = open_pipeline(recipe, device)
        options = adapter_options(recipe, family, device)
        self.family, self.options, self.lora = family, options, recipe.model.lora
        if device.type == "cuda":
            pipeline.transformer.to(device)  # so that both loops have the same memory for it
        public = None if alone else public_adapter(family, copy_of(pipeline), options)
        ours = family.adapter(pipeline, **options)
        adapters = [adapter for adapter in (public, ours) if adapter is not None]
        for adapter in adapters:
            adapter.add_lora(self.lora.rank, self.lora.alpha, targets=self.lora.targets)
        same_weights(adapters)
        self.ballast = _ballast(recipe, device)
        own = counts(recipe)[1]
        self.ours = Side(ours, recipe, batch=own.batch, drawn=own.rollout_batch)
        self.sides = {"ours": self.ours}
        if public is not None:
            self.sides = {"public": Side(public, recipe, batch=BATCH, drawn=BATCH), **self.sides}
        self.parts: dict[str, dict[str, float]] = {name: {} for name in self.sides}
        self.many: dict[str, float] = {}

    @property
    def public(self) -> Side:
        return self.sides["public"]

    def run(self) -> None:
        report = self.report
        with report.part("limit of the device"):
            report.note(limit=self._limit())
        with report.part("sampling and decoding"):
            self._rollouts()
        with report.part("training"):
            self._training()
        with report.part("refresh"):
            self._refresh()
        if "public" in self.sides:
            self._more()
        with report.part("memory"):
            self._memory()
        self._compose("steps, all parts")

    def _more(self) -> None:
        report = self.report
        self._compose("steps")
        with report.part("errors of the gradient"):
            report.note(gradient_errors=gradient_errors(self.public, self.ours))
        with report.part("waits of the host"):
            self._waits()
        with report.part(f"refresh with {MANY} rewards"):
            self.many = self._recorded(self.ours.marble(MANY), f"refresh, K = {MANY}")
        with report.part("errors from fp32"):
            report.note(gradient_errors=self._from_fp32())

    def _compose(self, name: str) -> None:
        with self.report.part(name):
            self.report.note(**summary(self.recipe, self.parts, self.many, self.report.found))

    # -- parts ------------------------------------------------------------------------------------

    def _limit(self) -> dict[str, float]:
        """FLOPs of a forward, and what the device does in a plain matrix product."""
        from torch.utils.flop_counter import FlopCounterMode

        side = self.ours
        cond = side.adapter.encode([side.texts[0]]).to(self.device)
        x = torch.zeros(1, *side.adapter.latent_shape, device=self.device)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            side.adapter.velocity(x, torch.full((1,), 0.5, device=self.device), cond)
        return {
            "forward_tflop_per_picture": counter.get_total_flops() / 1e12,
            "matmul_tflops": matmul_tflops(self.device),
        }

    def _rollouts(self) -> None:
        with ExitStack() as stack:
            for side in self.sides.values():
                stack.enter_context(side.drawing())
            for part in ("sampling", "decoding"):
                self._timed(part, {name: side.calls[part] for name, side in self.sides.items()})
        for found in self.parts.values():
            found["sampling"] /= self.recipe.rollout.steps
        self.ours.merge()
        merged = milliseconds(self.ours.merge, self.device)
        self.parts["ours"]["merge"] = merged
        self.report.note(parts={"merge": {"ours": {"ms": merged}}})

    def _training(self) -> None:
        sums = {name: side.weighted_sum() for name, side in self.sides.items()}
        steps = {name: partial(side.step, sums[name], kl=True) for name, side in self.sides.items()}
        self._micro_batches("kl", steps)
        if "public" in steps:
            with switched_by_hand(self.public.adapter):
                self._micro_batches("kl, adapters switched by hand", {"public": steps["public"]})
        steps["ours"] = partial(self.ours.step, sums["ours"])
        self._micro_batches("plain", steps)
        self._timed("update", {name: side.update for name, side in self.sides.items()})

    def _micro_batches(self, part: str, steps: Mapping[str, Callable[..., Any]]) -> None:
        """ms of a micro-batch among others: a step has hundreds, and what it does before the first
        one, while the device waits, is left out."""
        calls = {f"{name}, {n}": make(pairs=n) for name, make in steps.items() for n in (FEW, MORE)}
        found = self._found(alternating(calls, self.repeats, self.device))
        rows = {}
        for name in steps:
            few, more = (found[f"{name}, {n}"] for n in (FEW, MORE))
            each = (more["ms"] - few["ms"]) / (MORE - FEW)
            each = each if each > 0 else more["ms"] / MORE  # on a busy machine
            self.parts[name][part] = each
            rows[name] = {"ms": each, "micro_batches": 1, str(FEW): few, str(MORE): more}
        self.report.note(parts={part: rows})

    def _refresh(self) -> None:
        found = self._recorded(self.ours.marble(), "refresh")
        self.parts["ours"] |= found

    def _recorded(self, balancer: Any, name: str) -> dict[str, float]:
        """ms of a recorded micro-batch, and of what a refresh does once: Gram, solve, gradient."""
        calls = {
            "one": self.ours.step(balancer, pairs=1, refresh=True),
            "two": self.ours.step(balancer, pairs=2, refresh=True),
        }
        found = self._found(alternating(calls, self.repeats, self.device))
        self.report.note(parts={name: found})
        each = found["two"]["ms"] - found["one"]["ms"]
        each = max(0.0, each)  # the difference of two times: below 0 on a busy machine
        return {"recorded": each, "solve": max(0.0, found["one"]["ms"] - each)}

    def _timed(self, part: str, calls: Mapping[str, Callable[[], None]]) -> None:
        found = self._found(alternating(calls, self.repeats, self.device))
        self.report.note(parts={part: found})
        for name, row in found.items():
            self.parts[name][part] = row["ms"]

    @staticmethod
    def _found(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, row in rows.items():
            if "failed" in row:
                raise RuntimeError(f"{name}: {row['failed']}")
        return rows

    def _from_fp32(self) -> dict[str, float]:
        """Of the same gradient, by the slow path in fp32; none where that model does not fit."""
        if sum(p.numel() for p in self.public.adapter.transformer.parameters()) > LARGE:
            return {}
        pipeline = copy_of(self.public.adapter.pipeline, own=True)
        try:
            pipeline.transformer.unload_lora()
            pipeline.transformer.float()
            wide = {**self.options, "dtype": "fp32", "precision": "fp32"}
            adapter = public_adapter(self.family, pipeline, wide)
            adapter.add_lora(self.lora.rank, self.lora.alpha, targets=self.lora.targets)
            for name in ("default", "old"):
                adapter.load_lora_state(name, self.public.adapter.lora_parameters(name))
            return errors_from_fp32(
                Side(adapter, self.recipe, batch=4, drawn=1), self.public, self.ours
            )
        except torch.OutOfMemoryError:
            return {}
        finally:
            del pipeline
            clean()

    def _waits(self) -> None:
        """Per micro-batch, once a step's first ones are behind it."""
        plain, marble = self.ours.weighted_sum(), self.ours.marble()
        kinds = {
            "ordinary": partial(self.ours.step, plain),
            "with KL": partial(self.ours.step, plain, kl=True),
            "recorded": partial(self.ours.step, marble, refresh=True),
        }
        found = {}
        for name, make in kinds.items():
            few, more = (host_waits(make(pairs=n), self.device) for n in (1, 3))
            if few is not None and more is not None:
                found[name] = {"per micro-batch": (more - few) / 2, "per step": few}
        self.report.note(host_waits=found)

    def _memory(self) -> None:
        """Peaks of our loop, once nothing of the other is left but the weights they share."""
        ours = self.ours
        if self.device.type != "cuda":
            return
        peaks = {}
        public = self.sides.pop("public", None)
        if public is not None:
            with public.drawing():
                peaks["public, sampling"] = peak_gb(public.calls["sampling"], self.device)
            call = public.step(public.weighted_sum(), kl=True)
            peaks["public, training"] = peak_gb(call, self.device)
            del call
        del public
        clean()
        with ours.drawing():
            for part, call in ours.calls.items():
                peaks[f"ours, {part}"] = peak_gb(call, self.device)
        peaks["ours, weighted sum"] = peak_gb(ours.step(ours.weighted_sum(), kl=True), self.device)
        balancer = ours.marble(every=2)  # a refresh, then an ordinary step
        peaks["ours, refresh"] = peak_gb(ours.step(balancer, refresh=True), self.device)
        peaks["ours, MARBLE"] = peak_gb(ours.step(balancer, kl=True), self.device)
        self.report.note(peak_memory_gb=peaks)


def about(recipe: Recipe, device: torch.device, memory_limit: float | None) -> dict[str, Any]:
    import diffusers
    import peft

    from marble import __version__

    public, own = counts(recipe)
    return {
        "what": f"{recipe.name}: the public loop and ours, alternating in one process",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "versions": {
            "marble": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "diffusers": diffusers.__version__,
            "peft": peft.__version__,
        },
        "setup": {
            "recipe": recipe.name,
            "model": recipe.model.path,
            "resolution": recipe.model.resolution,
            "gradient_checkpointing": recipe.model.gradient_checkpointing,
            "rewards": len(recipe.rewards.train),
            "reward_seconds_per_picture": reward_seconds(recipe),
            "memory_limit_gb": memory_limit,
            "public": vars(public),
            "ours": vars(own),
        },
    }


def adapter_options(recipe: Recipe, family: type[Family], device: torch.device) -> dict[str, Any]:
    """As `models.build` gives them to the recipe's adapter."""
    model = recipe.model
    return {
        "options": family.Options.model_validate(model.options),
        "device": str(device),
        "dtype": model.dtype,
        "precision": recipe.train.precision,
        "resolution": model.resolution,
        "max_sequence_length": model.max_sequence_length,
        "truncate_prompts": model.truncate_prompts,
        "gradient_checkpointing": model.gradient_checkpointing,
        "compile": model.compile,
    }


def same_weights(adapters: Sequence[Any]) -> None:
    """LoRA weights away from the start, where half of the gradients are zero; v_old beside v_θ."""
    generator = torch.Generator().manual_seed(1)
    for name in ("default", "old"):
        values = {
            key: 0.02 * torch.randn(parameter.shape, generator=generator).to(parameter)
            for key, parameter in sorted(adapters[-1].lora_parameters(name).items())
        }
        for adapter in adapters:
            adapter.load_lora_state(name, values)


def _ballast(recipe: Recipe, device: torch.device) -> torch.Tensor | None:
    """Memory of what a run keeps on the device beside the denoiser, the VAE and the LoRA."""
    if device.type != "cuda":
        return None
    held = estimate(recipe).held
    size = sum(held[name] for name in ("rewards", "text encoders", "latents of two epochs"))
    return torch.empty(int(size * 1e9), dtype=torch.uint8, device=device)


def _limit(gigabytes: float, device: torch.device) -> None:
    if device.type != "cuda":
        raise MarbleError("--memory-limit: is for a GPU; this is a CPU")
    total = torch.cuda.get_device_properties(device).total_memory
    if gigabytes * 1e9 > total:
        raise MarbleError(f"--memory-limit {gigabytes:g}: the GPU has {total / 1e9:.0f} GB")
    torch.cuda.set_per_process_memory_fraction(gigabytes * 1e9 / total, torch.cuda.current_device())
