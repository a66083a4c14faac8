"""What a rule is: Gram matrix in, one weight per reward out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from marble.errors import MarbleError

from ._linalg import Array, cosines, spread


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
    """Base of all rules: a name, and weights from a Gram matrix.

    `normalise` says whether α weighs unit gradients. A preference is a positive vector: more
    means more important.
    """

    name: ClassVar[str]

    def __init__(self, *, normalise: bool = True) -> None:
        self.normalise = normalise

    @abstractmethod
    def __call__(self, gram: Array, preference: Array | None = None) -> Weights:
        """Weights for a raw Gram matrix. A zero gradient gets 0; if all are zero, all get 0."""

    def coefficients(self, alpha: Array, norms: Array) -> Array:
        """c with Σ c_k g_k the rule's direction: c_k = α_k n̄/‖g_k‖, or α_k on raw gradients.

        n̄ is the mean norm of the rewards with a gradient; the others get 0.
        """
        present = norms > 0.0
        if not present.any():
            return np.zeros_like(alpha)
        scale = norms[present].mean() / np.where(present, norms, 1.0) if self.normalise else 1.0
        return np.asarray(np.where(present, alpha * scale, 0.0))


class GramRule(Rule):
    """A rule that solves for its weights. Subclasses define `name` and `weights`."""

    @abstractmethod
    def weights(self, gram: Array, preference: Array) -> Weights:
        """Weights for the vectors behind `gram`: at least one, none of them zero, as seen by the
        rule (unit vectors where it normalises); `preference` has mean 1."""

    def __call__(self, gram: Array, preference: Array | None = None) -> Weights:
        gram = check_gram(gram)
        active = np.diagonal(gram) > 0.0
        alpha = np.zeros(len(gram))
        if not active.any():
            return Weights(alpha)
        matrix = gram[np.ix_(active, active)]
        matrix = cosines(matrix)[1] if self.normalise else matrix
        chosen = np.ones(len(gram)) if preference is None else np.asarray(preference, float)
        answer = self.weights(matrix, chosen[active] / chosen[active].mean())
        alpha[active] = answer.alpha
        return Weights(alpha, answer.gap, answer.info)


class FreeRule(Rule):
    """A rule that knows its weights without gradients. Subclasses define `name` and `current`."""

    def __init__(self) -> None:
        super().__init__(normalise=False)

    @abstractmethod
    def current(self, preference: Array) -> Array:
        """The weights now, on the simplex."""

    def __call__(self, gram: Array, preference: Array | None = None) -> Weights:
        gram = check_gram(gram)
        chosen = np.ones(len(gram)) if preference is None else np.asarray(preference, float)
        active = np.diagonal(gram) > 0.0
        return Weights(spread(self.current(chosen), active))


class ObservingRule(FreeRule):
    """A free rule that learns from each step's reward statistics."""

    @abstractmethod
    def observe(
        self,
        means_K: Array,
        stds_K: Array,
        counts_K: Array | None = None,
        advantages_KN: Array | None = None,
    ) -> None:
        """Take note of a step; NaN or a count of 0 marks a reward that did not apply."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


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
