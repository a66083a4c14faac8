"""The sections of a recipe that describe model, data, sampling and training.

Defaults are the published recipe for Stable Diffusion 3.5 Medium where there is one.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from marble.recipe.base import (
    Count,
    Decay,
    Fraction,
    Name,
    NonNegative,
    Positive,
    PositiveInt,
    Section,
    Seed,
)

Precision = Literal["fp32", "bf16", "fp16"]
Sampler = Literal["dpm", "euler"]
RolloutSampler = Literal["dpm", "euler", "sde"]
Tracker = Literal["tensorboard", "wandb", "trackio"]


class Lora(Section):
    rank: PositiveInt = Field(default=32, description="Rank of the LoRA matrices.")
    alpha: Positive = Field(default=64, description="LoRA scale: the update is alpha / rank · B A.")
    init: Literal["gaussian", "default"] = Field(
        default="gaussian",
        description="How A starts (B is zero): normal, or peft's Kaiming-uniform.",
    )
    targets: list[str] | None = Field(
        default=None,
        description="Layers to adapt, by name ending; null: the model family's attention.",
    )


class Model(Section):
    path: str = Field(
        default="studio", min_length=1, description="`studio`, a diffusers folder, or a hub id."
    )
    revision: str | None = Field(default=None, description="Hub revision, for an exact version.")
    dtype: Precision = Field(
        default="bf16", description="Number format of the frozen base's weights."
    )
    resolution: PositiveInt | None = Field(
        default=None, description="Picture side in pixels; null: the model's own."
    )
    family: str | None = Field(
        default=None,
        description="`module:Class` of a family that is not built in; null: found by the pipeline.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Settings of this model family alone (docs/families.md)."
    )
    max_sequence_length: PositiveInt | None = Field(
        default=None, description="Tokens of the (long) text encoder; null: diffusers' default."
    )
    truncate_prompts: bool = Field(
        default=False, description="Cut prompts the text encoders cannot take, instead of stopping."
    )
    offload_encoders: bool = Field(
        default=False,
        description="Text encoders wait in main memory and visit the device for new prompts only.",
    )
    lora: Lora = Field(default=Lora(), description="The trained part.")
    gradient_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in backward: less memory, about a third slower.",
    )
    compile: Literal[True, False, "auto"] = Field(
        default="auto",
        description="torch.compile each transformer block, and replay a small model's passes as "
        "CUDA graphs; auto: when training on a GPU, blocks of 100 M weights or more in all.",
    )


class Source(Section):
    path: str = Field(
        min_length=1, description="`studio:NAME`, a folder with train/test files, .txt or .jsonl."
    )
    share: NonNegative = Field(
        default=1.0, description="Share of the epoch's prompts, relative to others."
    )
    eval_path: str | None = Field(
        default=None, description="Held-out prompts, if not the test split of `path`."
    )


class Data(Section):
    sources: dict[Name, Source] = Field(
        default_factory=dict, description="Prompt sources by name; a plain path is shorthand."
    )
    prompts_per_epoch: PositiveInt = Field(
        default=48, description="Prompts per epoch, over all devices."
    )
    images_per_prompt: PositiveInt = Field(
        default=24,
        description="Pictures of one prompt: the group an advantage compares. At least 2.",
    )
    train_split: str = Field(default="train", description="Split of the sources to train on.")
    eval_split: str = Field(default="test", description="Split of the sources to evaluate on.")

    @field_validator("sources", mode="before")
    @classmethod
    def _path_alone(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {k: {"path": v} if isinstance(v, str) else v for k, v in value.items()}


class OldDecay(Section):
    """d(n) = min(initial + rate · max(0, n − start), cap); v_old ← d·v_old + (1−d)·v_θ."""

    initial: Decay = Field(default=0.0, description="Decay at the first epoch.")
    rate: NonNegative = Field(default=0.001, description="Growth of the decay per epoch.")
    start: Count = Field(default=0, description="Epoch after which the decay grows.")
    cap: Decay = Field(default=0.5, description="Largest decay.")

    def at(self, epoch: int) -> float:
        """The decay after `epoch` finished epochs."""
        return min(self.initial + self.rate * max(0, epoch - self.start), self.cap)


class Sde(Section):
    """Euler–Maruyama steps of the flow's reverse SDE, with diffusion g² = noise²·σ/(1−σ).

    All pictures of a prompt begin at the same latents.
    """

    noise: Positive = Field(default=0.7, description="Noise level of a step.")
    window: PositiveInt | None = Field(
        default=None,
        description="So many steps have noise, the first ones; the others are Euler's. null: all.",
    )


class Rollout(Section):
    sampler: RolloutSampler = Field(
        default="dpm", description="DPM-Solver++ 2M, Euler, or `sde`: with noise at every step."
    )
    sde: Sde = Field(default=Sde(), description="Settings of the sampler `sde`.")
    steps: PositiveInt = Field(
        default=25, description="Sampling steps; training uses the same timesteps."
    )
    guidance: Annotated[float, Field(ge=1)] = Field(
        default=1.0, description="Classifier-free guidance; 1 is none."
    )
    batch_size: PositiveInt | None = Field(
        default=24,
        description="Pictures drawn at once on a device; null: as many as its memory holds, 36 at "
        "most.",
    )
    fp8: bool = Field(
        default=False,
        description="Multiply in fp8 while drawing, on a GPU that can (Ada, Hopper, Blackwell): "
        "faster, and other pictures than in bf16.",
    )
    old_decay: OldDecay = Field(
        default=OldDecay(), description="How slowly the rollout policy follows."
    )


class Optim(Section):
    lr: Positive = Field(default=3e-4, description="AdamW's learning rate.")
    betas: Annotated[list[Decay], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.999], description="AdamW's moment decays."
    )
    eps: Positive = Field(default=1e-8, description="AdamW's ε.")
    weight_decay: NonNegative = Field(default=1e-4, description="AdamW's weight decay.")
    grad_clip: Positive | None = Field(
        default=1.0, description="Largest gradient norm; null: no clip."
    )
    warmup_steps: Count = Field(default=0, description="Steps over which lr rises linearly from 0.")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        default="constant",
        description="lr after the warm-up: stays, or falls to 0 at the last step by half a cosine "
        "or a line.",
    )
    ema_cap: Decay = Field(
        default=0.9, description="Weight EMA decay is min((1+n)/(10+n), cap); 0 turns it off."
    )

    def ema_decay(self, step: int) -> float:
        """Decay of the weight EMA after `step` optimiser steps."""
        return min((1 + step) / (10 + step), self.ema_cap)

    def lr_at(self, step: int, steps: int) -> float:
        """Learning rate of optimiser step `step` (the first is 0) of `steps`."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / (self.warmup_steps + 1)
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * done))
        return self.lr * (1 - done) if self.schedule == "linear" else self.lr


def kept_of(count: int, share: float) -> int:
    """How many of a prompt's `count` pictures are trained on (`train.extremes`)."""
    return max(1, math.ceil(share * count - 1e-9))


class Train(Section):
    steps: PositiveInt = Field(default=1000, description="Optimiser steps.")
    seed: Seed = Field(default=0, description="Seed of everything random in the run.")
    batch_size: PositiveInt | None = Field(
        default=9,
        description="Samples of a micro-batch on a device; null: as many as its memory holds, 36 "
        "at most.",
    )
    steps_per_epoch: PositiveInt = Field(
        default=1, description="Optimiser steps an epoch's samples are split into."
    )
    inner_epochs: PositiveInt = Field(default=1, description="Passes over an epoch's samples.")
    extremes: Fraction = Field(
        default=1.0,
        description="Part of a prompt's pictures trained on: those with the largest advantages. "
        "Advantages are of all.",
    )
    timesteps_fraction: Fraction = Field(
        default=0.99,
        description="Part of the sampling timesteps trained on, drawn anew for each sample.",
    )
    precision: Literal["fp32", "bf16", "fp16", "auto"] | None = Field(
        default=None,
        description="Number format of the computation (autocast); null: model.dtype; auto: bf16 on "
        "a CPU that has instructions for it, products in TF32 on a GPU if model.dtype is fp32.",
    )
    max_hours: Positive | None = Field(
        default=None, description="Stop cleanly, with a checkpoint, after so many hours."
    )
    checkpoint_every: Count = Field(
        default=50, description="Steps between checkpoints; 0: at the end."
    )
    keep_checkpoints: PositiveInt = Field(
        default=2, description="Newest checkpoints kept, besides the best."
    )
    probe: Count = Field(
        default=96,
        description="Held-out pictures by which training watches itself, two per prompt; 0: none.",
    )
    probe_every: PositiveInt = Field(default=10, description="Steps between looks at the probe.")
    best_by: Literal["worst", "mean"] = Field(
        default="worst",
        description="`checkpoints/best`: by the least relative gain of a trained reward on the "
        "probe, or by their mean.",
    )
    on_collapse: Literal["warn", "stop", "rollback"] = Field(
        default="warn",
        description="When the probe falls clearly below its best: say so, stop, or go back to the "
        "best checkpoint with half the learning rate.",
    )
    overlap_rewards: bool = Field(
        default=True, description="Score a batch while the next is sampled."
    )
    fsdp: bool = Field(
        default=False,
        description="Share the frozen weights out among the processes, for models that do not fit.",
    )


class Eval(Section):
    every: Count = Field(default=100, description="Steps between evaluations; 0: none in between.")
    at_start: bool = Field(default=True, description="Evaluate the untouched model first.")
    base: str | None = Field(
        default=None,
        description="A run to take the untouched model's evaluation over from, where it is the "
        "same; null: draw it.",
    )
    prompts: PositiveInt | None = Field(
        default=64, description="Held-out prompts of each source; null: all."
    )
    images_per_prompt: PositiveInt = Field(default=1, description="Pictures of each prompt.")
    seed: Seed = Field(default=1234, description="Seed of the pictures: the same for every model.")
    ema: bool = Field(
        default=True, description="Evaluate the weight EMA rather than the live weights."
    )
    sampler: Sampler | None = Field(default=None, description="null: rollout.sampler.")
    steps: PositiveInt | None = Field(default=None, description="null: rollout.steps.")
    guidance: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="null: rollout.guidance."
    )
    batch_size: PositiveInt | None = Field(default=None, description="null: rollout.batch_size.")


class Log(Section):
    samples_every: Count = Field(default=50, description="Steps between sample grids; 0: none.")
    samples: PositiveInt = Field(default=16, description="Pictures of a sample grid.")
    harmony_every: Count = Field(
        default=10,
        description="Steps between looks at the gradients' geometry, for methods without a Gram; "
        "0: none.",
    )
    trackers: list[Tracker] = Field(
        default=["tensorboard"], description="Where metrics go as well."
    )
    project: str = Field(default="marble", description="Project name for W&B and trackio.")
    run_name: str | None = Field(default=None, description="Name of the run; null: its folder's.")

    @model_validator(mode="after")
    def _no_repeats(self) -> Log:
        if len(set(self.trackers)) != len(self.trackers):
            raise ValueError("trackers: one is named twice")
        return self
