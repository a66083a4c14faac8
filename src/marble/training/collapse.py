"""What is done about a run whose probe has collapsed: told, stopped, or taken back."""

from __future__ import annotations

from collections.abc import Callable

from marble.training.checkpoint import State
from marble.training.loop import Trainer

# A run that collapses again and again has settings that no learning rate mends.
MOST_ROLLBACKS = 3


def answer(trainer: Trainer, best_state: Callable[[], State]) -> tuple[bool, str]:
    """Whether to stop, and what is done, in words; `best_state` reads the best checkpoint."""
    action, watch = trainer.recipe.train.on_collapse, trainer.watch
    if action == "warn" or watch.best_step is None:
        return action != "warn", (
            f"The best checkpoint, step {watch.best_step}, is kept; "
            "train.on_collapse=rollback would return to it. A tighter trust region "
            "(rollout.old_decay, objective.kl) or a lower optim.lr prevents this"
        )
    if action == "stop" or watch.rollbacks >= MOST_ROLLBACKS:
        return True, f"Stopping; the best checkpoint is step {watch.best_step}"
    trainer.go_back(best_state())
    return False, (
        f"Back to the best checkpoint, step {watch.best_step}, with the learning rate times "
        f"{trainer.lr_scale:g}"
    )
