"""What a step decides, and what it has to say when it is finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from marble.harmonise import Solution


@dataclass(frozen=True)
class Decision:
    """A step's coefficients, as the rule gave them and as weights of the rows that are summed.

    direction_R: of the K rewards and, last, of their sum (for methods that merge rewards).
    merged: whether it is the sum that is followed, whatever its coefficient.
    harmony_sum: what the weighted sum's direction would have had; None where nothing is measured.
    """

    solution: Solution
    direction_R: np.ndarray
    merged: bool = False
    harmony_sum: dict[str, float] | None = None


Decide = Callable[[bool], Decision]
"""Takes whether this step's recorded gradients are there and can be used."""


@dataclass
class StepReport:
    """What a finished step has to say: coefficients and, where they were measured, the geometry.

    coefficients_K: c of the step Σ c_k g_k (for merged methods: the rewards' weights).
    loss: Σ c_k ℓ_k, without KL. kl, old_deviation: mean ‖v − v_ref‖² (of the pairs that had a
    v_ref) and mean ‖v − v_old‖² (NaN for objectives without v_old). harmony_sum: what the weighted
    sum's direction would have had. finite: False means that `.grad` is None everywhere; skip the
    step. `bad_samples` are the positions in the batch, on any process, whose loss was not finite.
    """

    coefficients_K: np.ndarray
    alpha_K: np.ndarray
    alpha_raw_K: np.ndarray
    norms_K: np.ndarray | None = None
    cos_KK: np.ndarray | None = None
    harmony: dict[str, float] | None = None
    harmony_heldout: dict[str, float] | None = None
    harmony_sum: dict[str, float] | None = None
    gap: float | None = None
    loss: float = float("nan")
    kl: float = float("nan")
    old_deviation: float = float("nan")
    refreshed: bool = False
    finite: bool = True
    bad_samples: list[int] = field(default_factory=list)
    notes: tuple[str, ...] = ()
