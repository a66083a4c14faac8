"""All that the next epoch depends on, out of a trainer and back into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marble import __version__
from marble.errors import CheckpointError
from marble.recipe import Recipe
from marble.training import random_state
from marble.training.checkpoint import (
    State,
    load_optimizer_tensors,
    optimizer_tensors,
    written_by,
)

if TYPE_CHECKING:
    from marble.training.loop import Trainer


def capture(trainer: Trainer) -> State:
    """The state as of now. Every process takes part, since each has a random state of its own."""
    own = random_state.capture(), _reward_states(trainer), trainer.adapter.decisions()
    ranks = trainer.processes.gather(own)
    return State(
        {
            "live": trainer.adapter.lora_state("default"),
            "old": trainer.adapter.lora_state("old"),
            "ema": trainer.ema,
            "optimizer": optimizer_tensors(trainer.parts.optimizer),
            "random": {
                f"{rank}.{key}": tensor
                for rank, (generators, *_) in enumerate(ranks)
                for key, tensor in generators.items()
            },
        },
        {
            "step": trainer.step,
            "epoch": trainer.epoch,
            "seed": trainer.recipe.train.seed,
            "processes": trainer.processes.size,
            "precision": str(trainer.adapter.precision),
            "balance": trainer.balancer.state_dict(),
            "guard": trainer.guard.state_dict(),
            "watch": trainer.watch.state_dict(),
            "opposed": trainer.opposed.state_dict(),
            "lr_scale": trainer.lr_scale,
            "rewards": [rewards for _, rewards, _ in ranks],
            "decisions": [decisions for *_, decisions in ranks],
        },
    )


def restore(trainer: Trainer, state: State) -> list[str]:
    """Makes `trainer` the one that was captured; notes on what cannot be the same, if anything."""
    try:
        return _restore(trainer, state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint does not fit ({type(error).__name__}: {error}); it was written by "
            f"{written_by(state.meta)}, this is marble {__version__}: resume with the recipe and "
            "the version of the run"
        ) from error


def _restore(trainer: Trainer, state: State) -> list[str]:
    tensors, meta = state.tensors, state.meta
    restore_policy(trainer, state)
    trainer.step, trainer.epoch = meta["step"], meta["epoch"]
    trainer.watch.load_state_dict(meta["watch"])
    trainer.opposed.load_state_dict(meta.get("opposed", {}))  # older checkpoints have none
    trainer.lr_scale = meta["lr_scale"]
    trainer.guard.load_state_dict(meta["guard"])
    saved, processes = meta["processes"], trainer.processes
    decided = meta.get("decisions") or [{}]  # older checkpoints have none
    trainer.adapter.decide(decided[processes.rank % len(decided)])
    if saved == processes.size:
        _load_reward_states(trainer, meta["rewards"][processes.rank])
    else:
        _load_reward_states(trainer, _merged(meta["rewards"], processes.is_main))
    # Last, because loading may draw.
    if processes.rank < saved:
        prefix = f"{processes.rank}."
        own = {
            k.removeprefix(prefix): t for k, t in tensors["random"].items() if k.startswith(prefix)
        }
        random_state.restore(own)
    else:
        random_state.seed(trainer.recipe.train.seed, processes.rank, trainer.step)
    notes = [] if saved == processes.size else [_changed(saved, processes.size, trainer.recipe)]
    if meta["precision"] != str(trainer.adapter.precision):
        notes.append(
            f"saved computing in {meta['precision']}, resumed in {trainer.adapter.precision}: "
            "equal up to rounding; train.precision decides it"
        )
    before, now = meta.get("seed"), trainer.recipe.train.seed
    if before not in (None, now):
        notes.append(
            f"saved with train.seed={before}, resumed with {now}: prompts, pictures and noise are "
            "those of the new seed from here on, and no single seed repeats this run"
        )
    return notes


def restore_policy(trainer: Trainer, state: State) -> None:
    """The weights, with what moves them: v_old, their average, optimiser and balance."""
    tensors = state.tensors
    trainer.adapter.load_lora_state("default", tensors["live"])
    trainer.adapter.load_lora_state("old", tensors["old"])
    trainer.ema = {name: tensors["ema"][name].to(t) for name, t in trainer.ema.items()}
    load_optimizer_tensors(trainer.parts.optimizer, tensors["optimizer"])
    trainer.balancer.load_state_dict(state.meta["balance"])


def _reward_states(trainer: Trainer) -> list[dict[str, Any] | None]:
    sets = (trainer.parts.rewards, trainer.parts.heldout)
    return [None if rewards is None else rewards.state_dict() for rewards in sets]


def _load_reward_states(trainer: Trainer, states: list[dict[str, Any] | None]) -> None:
    for rewards, state in zip((trainer.parts.rewards, trainer.parts.heldout), states):
        if rewards is not None and state is not None:
            rewards.load_state_dict(state)


def _merged(ranks: list[list[dict[str, Any] | None]], is_main: bool) -> list[dict[str, Any] | None]:
    """For another number of processes: everyone watches on as the first did; skips stay counted."""
    merged: list[dict[str, Any] | None] = []
    for states in zip(*ranks):
        known = [state for state in states if state is not None]
        if not known:
            merged.append(None)
            continue
        skipped = {
            name: sum(state["skipped"][name] for state in known) if is_main else 0
            for name in known[0]["skipped"]
        }
        merged.append({**known[0], "skipped": skipped})
    return merged


def _changed(before: int, now: int, recipe: Recipe) -> str:
    """What another number of processes means for this recipe."""
    note = f"saved by {before} processes, resumed by {now}: same samples, advantages and steps, "
    note += "equal up to rounding"
    dealt = {
        "balance.probe": recipe.balance.probe < 1,
        "balance.heldout_half": recipe.balance.heldout_half,
        "objective.kl_every": recipe.objective.kl_every > 1,
    }
    affected = [name for name, used in dealt.items() if used]
    if affected:
        note += f"; but {', '.join(affected)} choose among each process's micro-batches"
    return note
