"""What a step gets from the harmoniser."""

from __future__ import annotations

from dataclasses import dataclass

from ._linalg import Array


@dataclass(frozen=True)
class Solution:
    """What a step needs, and what is worth logging about it.

    coefficients_K: c with update direction Σ c_k g_k, for raw gradients g_k.
    alpha_K, alpha_raw_K: the moving average ᾱ, and the weights of the last solve (0 where silent).
    norms_K: ‖g_k‖ of this refresh; in between, of the reward's last one (NaN before its first).
    cos_KK, gap, harmony, harmony_heldout: of this refresh; None in between.
    active_K: the rewards that take part in this step.
    notes: what happened to the step that the user should know, in sentences.
    """

    coefficients_K: Array
    alpha_K: Array
    alpha_raw_K: Array
    norms_K: Array
    active_K: Array
    refreshed: bool
    notes: tuple[str, ...] = ()
    cos_KK: Array | None = None
    gap: float | None = None
    harmony: dict[str, float] | None = None
    harmony_heldout: dict[str, float] | None = None
