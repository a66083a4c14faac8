"""How long a recipe takes: seconds per step and hours in all, before anything runs.

Computed from measured times of single operations: Stable Diffusion 3.5 Medium at 512 px on an H200,
the studio on two CPU cores (benchmarks/results; a test keeps the constants equal to the files).
Other models are scaled by parameters × latent tokens, other GPUs by their peak 16-bit throughput.
Only the two were measured: take the figure for its size, not for its digits.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from marble.errors import MarbleError
from marble.objectives import objective_class
from marble.recipe import Recipe


@dataclass(frozen=True)
class GPU:
    """What scales with the card."""

    name: str
    tflops: float
    """Peak of dense bf16 matrix products, as the vendor states it."""
    memory_gb: float
    fp8: bool = True
    """Whether it multiplies fp8 (`rollout.fp8`)."""


GPUS = {
    "b200": GPU("B200", 2250, 180),
    "h200": GPU("H200", 989, 141),
    "h100": GPU("H100", 989, 80),
    "a100": GPU("A100", 312, 80, fp8=False),
    "a100-40": GPU("A100 40 GB", 312, 40, fp8=False),
    "l40s": GPU("L40S", 362, 48),
    "a6000": GPU("RTX A6000", 155, 48, fp8=False),
    "rtx4090": GPU("RTX 4090", 165, 24),
    "rtx3090": GPU("RTX 3090", 71, 24, fp8=False),
}


@dataclass(frozen=True)
class Times:
    """Measured seconds of single operations of one model on one device."""

    forward: float
    """One picture, one sampling step."""
    pair: float
    """One picture at one timestep in training: v_old, v_ref, v_θ and its backward pass."""
    checkpointed: float
    """The same with gradient checkpointing."""
    refresh: float
    """A recorded micro-batch over an ordinary one."""
    decode: float
    size: float
    """Parameters × latent tokens, in whose proportion the above grows."""
    reference: float
    """v_ref's part of `pair`, which `objective.kl_every` makes rarer."""


H200_SD35M = Times(0.0150, 0.0557, 0.118, 1.31, 0.022, 2.47e9 * 32**2, 0.0150)
H200_COMPILED = Times(0.0047, 0.0224, 0.0351, 1.44, 0.0081, 2.47e9 * 32**2, 0.0045)
CPU_STUDIO = Times(0.0035, 0.0079, 0.0105, 2.1, 0.0075, 4.7e6 * 8**2, 0.0)
CPU_CORES = 2
"""Cores that CPU_STUDIO was measured with."""

REWARDS = {
    "geneval": 0.112,
    "ocr": 0.052,
    "pickscore": 0.0184,
    "clipscore": 0.0116,
    "hpsv2": 0.0092,
    "aesthetic": 0.0136,
}
"""Seconds per picture on the H200 (OCR: its CPU)."""
STUDIO_REWARD = 0.0014
"""Seconds per picture of a studio reward on the CPU, mean of the five."""
CALL = 0.02
"""Seconds of a pass through a transformer on a GPU, however small: starting its kernels."""
SMALL = 500_000_000
"""Parameters up to which a model trains on a CPU."""


@dataclass(frozen=True)
class Duration:
    """Seconds; `parts` are of an ordinary step."""

    parts: dict[str, float]
    refresh: float
    step: float
    """Mean over ordinary and refresh steps."""
    evaluation: float
    total: float
    unknown: list[str]
    """Rewards without a measured time, counted as none."""


def find_gpu(name: str) -> GPU | None:
    """A card by a name people use, or by the one CUDA gives it."""
    plain = re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower())
    if "a100" in plain and "40" in plain:
        return GPUS["a100-40"]
    for key in sorted(GPUS, key=len, reverse=True):
        if key.replace("-", "") in plain:
            return GPUS[key]
    return None


def named_gpu(name: str) -> GPU:
    found = find_gpu(name)
    if found is None:
        raise MarbleError(f"--gpu {name}: not known; known: {', '.join(GPUS)}")
    return found


def estimate_time(recipe: Recipe, gpu: GPU | None, count: int = 1) -> Duration:
    """For `count` GPUs, or for `count` cores where `gpu` is None."""
    recipe = _fitting(recipe, gpu, count)
    micro_batch, at_once = recipe.train.batch_size, recipe.rollout.batch_size
    assert micro_batch is not None and at_once is not None
    measured = CPU_STUDIO if gpu is None else H200_COMPILED if _compiled(recipe) else H200_SD35M
    faster = count / CPU_CORES if gpu is None else count * gpu.tflops / GPUS["h200"].tflops
    scale = _size(recipe) / measured.size / faster
    pictures = recipe.samples_per_epoch
    steps = recipe.train.steps_per_epoch * recipe.train.inner_epochs
    scored, unknown = _scoring(recipe, gpu is not None)
    passes = 2 if recipe.rollout.guidance != 1 else 1

    call = CALL if gpu is not None else 0.0

    def drawn(number: int, sampling: int) -> float:
        batches = math.ceil(number / at_once / count)
        seconds = number * (sampling * passes * measured.forward + measured.decode) * scale
        return max(seconds, batches * sampling * passes * call)

    rollout = drawn(pictures, recipe.rollout.steps)
    scoring = pictures * scored / count
    if recipe.train.overlap_rewards:  # one batch is scored while the next is drawn
        scoring = max(0.0, scoring - rollout)
    pair = measured.checkpointed if recipe.model.gradient_checkpointing else measured.pair
    objective = recipe.objective
    drawn_to_base = objective.kl > 0 and objective_class(objective.name).anchor == "base"
    pair -= measured.reference * (1 - drawn_to_base / objective.kl_every)
    trained = recipe.trained_per_epoch / recipe.train.steps_per_epoch
    batches = math.ceil(trained / micro_batch / count)
    training = recipe.timesteps_per_sample * max(trained * pair * scale, 5 * batches * call)
    parts = {"rollout": rollout / steps, "rewards": scoring / steps, "training": training}
    balance = recipe.balance
    again = balance.pairs
    if again:
        parts["base samples"] = (drawn(again, recipe.rollout.steps) + again * scored) / steps
    if recipe.train.probe:  # looked at now and then: its share of each step
        number, every = recipe.train.probe, recipe.train.probe_every
        parts["probe"] = (drawn(number, recipe.rollout.steps) + number * scored) / every
    ordinary = sum(parts.values())
    refresh = ordinary + (measured.refresh - 1) * training * recipe.balance.probe
    step = ordinary + recipe.balance.recorded * (refresh - ordinary)
    shown = recipe.eval.steps or recipe.rollout.steps
    held_out, more = _scoring(recipe, gpu is not None, held_out=True)
    number = _evaluated(recipe)
    evaluation = drawn(number, shown) + number * (scored + held_out) / count
    every = recipe.eval.every
    times = (
        int(recipe.eval.at_start) + 1 + (max(0, recipe.train.steps - 1) // every if every else 0)
    )
    total = recipe.train.steps * step + times * evaluation
    return Duration(parts, refresh, step, evaluation, total, [*unknown, *more])


def _fitting(recipe: Recipe, gpu: GPU | None, count: int) -> Recipe:
    from marble.memory import sized

    return sized(recipe, None if gpu is None else gpu.memory_gb, 1 if gpu is None else count)


def _compiled(recipe: Recipe) -> bool:
    """Whether the blocks are compiled on a GPU, as `models.compiling.wanted` decides."""
    from marble.memory import model_facts
    from marble.models.compiling import SMALL as UNCOMPILED

    weights = model_facts(recipe).parts["transformer"]
    return bool(recipe.model.compile) and (recipe.model.compile is True or weights >= UNCOMPILED)


def _size(recipe: Recipe) -> float:
    """Parameters × latent tokens: what a pass through the model grows with."""
    from marble.memory import model_facts

    known = model_facts(recipe)
    at = known.layout
    side = (recipe.model.resolution or at.resolution) / (at.factor * at.patch)
    return known.parts["transformer"] * side**2


def reward_seconds(recipe: Recipe) -> float:
    """Mean seconds that the trained rewards take for one picture on a GPU, where measured."""
    return _scoring(recipe, on_gpu=True)[0]


def _scoring(recipe: Recipe, on_gpu: bool, held_out: bool = False) -> tuple[float, list[str]]:
    """Mean seconds that all rewards take for one picture, and the rewards that nobody timed."""
    seconds, unknown = 0.0, []
    sources = len(recipe.data.sources) or 1
    for entry in recipe.rewards.heldout if held_out else recipe.rewards.train:
        share = len(entry.sources) / sources if entry.sources else 1.0
        known = REWARDS.get(entry.reward) if on_gpu else None
        if entry.reward.startswith("studio-") or (not on_gpu and entry.reward == "ocr"):
            known = STUDIO_REWARD
        if known is None:
            unknown.append(entry.name)
        seconds += share * (known or 0.0)
    return seconds, unknown


def _evaluated(recipe: Recipe) -> int:
    """Pictures of one evaluation."""
    from marble.data import load_prompts

    count = 0
    for name, source in recipe.data.sources.items():
        have: Any = recipe.eval.prompts
        try:
            path = source.eval_path or source.path
            there = len(load_prompts(path, recipe.data.eval_split, source=name))
            have = there if have is None else min(have, there)
        except MarbleError:
            have = have or 0
        count += have
    return count * recipe.eval.images_per_prompt
