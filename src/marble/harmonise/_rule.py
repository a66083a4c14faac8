"""What a rule is: Gram matrix in, one weight per reward out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array, cosines


@dataclass(frozen=True)
class Weights:
    """A rule's answer.

    `alpha` weighs the vectors the rule saw (unit gradients if it normalises), `gap` is the
    certificate of the min-norm solve inside it (None where there is none), `info` holds figures
    of the particular rule.
    """

    alpha: Array
    gap: float | None = None
    info: dict[str, Any] = field(default_factory=dict)


class Rule(ABC):
    """Base of all rules. Subclasses define `name` and `weights`.

    `normalise` says whether the rule sees unit gradients; `needs_gram` whether it sees gradients
    at all. A preference is a positive vector with mean 1: more means more important.
    """

    name: ClassVar[str]
    needs_gram: ClassVar[bool] = True

    def __init__(self, *, normalise: bool = True) -> None:
        self.normalise = normalise

    @abstractmethod
    def weights(self, gram: Array, preference: Array) -> Weights:
        """Weights for the vectors behind `gram` (no zero vectors, at least one)."""

    def __call__(self, gram: Array, preference: Array | None = None) -> Weights:
        """Weights for a raw Gram matrix: checks it, normalises if the rule does, solves.

        A zero gradient gets weight 0; if all are zero, so are all weights.
        """
        gram = check_gram(gram)
        active = np.diagonal(gram) > 0.0
        alpha = np.zeros(len(gram))
        if not active.any():
            return Weights(alpha, info={"silent": True})
        matrix = gram[np.ix_(active, active)]
        matrix = cosines(matrix)[1] if self.normalise else matrix
        chosen = np.ones(len(gram)) if preference is None else np.asarray(preference, float)
        answer = self.weights(matrix, chosen[active] / chosen[active].mean())
        alpha[active] = answer.alpha
        return Weights(alpha, answer.gap, answer.info)

    def coefficients(self, alpha: Array, norms: Array) -> Array:
        """c with Σ c_k g_k the rule's direction: c_k = α_k n̄/‖g_k‖, or α_k on raw gradients.

        n̄ is the mean norm of the rewards with a gradient; the others get 0.
        """
        present = norms > 0.0
        if not present.any():
            return np.zeros_like(alpha)
        if not self.normalise:
            return np.where(present, alpha, 0.0)
        return np.where(present, alpha * norms[present].mean() / np.where(present, norms, 1.0), 0.0)

    # A rule that needs no Gram matrix answers these; for the others they do nothing.

    def current(self, preference: Array) -> Array:
        """The weights of a rule without a solve."""
        raise NotImplementedError(f"{self.name} needs a Gram matrix")

    def observe(  # noqa: B027
        self, means_K: Array, stds_K: Array, counts_K: Array | None = None
    ) -> None:
        """Take note of a step's reward statistics."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Restore `state_dict`."""


def check_gram(gram: Any, names: tuple[str, ...] | None = None) -> Array:
    """`gram` as a symmetric fp64 matrix, or an error that names the reward at fault."""
    try:
        matrix = np.array(gram, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MarbleError(f"The Gram matrix must be an array of numbers: {error}.") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise MarbleError(f"The Gram matrix must be square [K, K], got shape {matrix.shape}.")
    if names is not None and len(names) != len(matrix):
        raise MarbleError(
            f"The Gram matrix has {len(matrix)} rows but there are {len(names)} rewards "
            f"({', '.join(names)})."
        )
    labels = names or tuple(f"reward {k}" for k in range(len(matrix)))
    finite = np.isfinite(matrix)
    if not finite.all():
        # The reward whose own norm is not finite is the cause; the others only met it.
        own = [labels[k] for k in range(len(matrix)) if not finite[k, k]]
        met = [labels[k] for k in range(len(matrix)) if not finite[k].all()]
        raise MarbleError(
            f"The gradient of {', '.join(own or met)} is not finite. Check that reward's scores "
            "and advantages, or lower the learning rate if the loss itself has overflowed."
        )
    scale = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    bound = np.outer(scale, scale)
    negative = np.diagonal(matrix) < 0.0
    if negative.any():
        raise MarbleError(
            f"The squared gradient norm of {labels[int(np.argmax(negative))]} is negative. A Gram "
            "matrix cannot have that; for products across halves of a step use debiased_gram."
        )
    if (np.abs(matrix - matrix.T) > 1e-6 * bound + 1e-300).any():
        raise MarbleError("The Gram matrix is not symmetric: G[i, j] must be g_i · g_j.")
    return 0.5 * (matrix + matrix.T)
