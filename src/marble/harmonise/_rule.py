"""What a rule is: Gram matrix in, one weight per reward out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationError

from marble.errors import MarbleError
from marble.options import Section

from ._linalg import Array, cosines, spread
from ._options import nearest

Gate = Callable[[int], Array]
"""Optimiser step → bool [K]. A pure function of the step, so that resuming needs no state."""


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
    """Base of all rules: a name, options declared beside it, and weights from a Gram matrix.

    `normalise` says whether α weighs unit gradients. A preference is a positive vector: more
    means more important. `Options` holds the rule's own recipe fields (`balance.options`) and the
    only set of their defaults.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Section]] = Section
    normalise: bool = True
    observes: ClassVar[bool] = False
    """Whether `observe` looks at each step's reward statistics."""
    prioritised: ClassVar[bool] = False
    """Whether `rewards.NAME.priority` reaches the rule as its preference."""
    merges: ClassVar[Literal["rewards", "advantages"] | None] = None
    """Rewards are summed before any gradient: their scores, or their advantages."""
    chosen_by: ClassVar[Literal["reward", "stages"] | None] = None
    """The part of a recipe's `balance` that says which rewards take part in which step, where it
    is for the caller to say."""
    shorthand: ClassVar[str | None] = None
    """The option that a field of the rule's name in a recipe's `balance` stands for."""
    fixes: ClassVar[Mapping[str, Any] | None] = None
    """Fields of a recipe's `balance` that it comes with; all others are at their defaults then."""
    halves: ClassVar[bool] = False
    """Whether two rewards get α = (½, ½) whatever their gradients are."""
    saved_as: ClassVar[str | None] = None
    """Its name in checkpoints, where that is another rule's."""

    @classmethod
    def read_options(cls, options: Mapping[str, Any]) -> Any:
        """`options` as `cls.Options`, or an error that says what is wrong with them."""
        try:
            return cls.Options(**options)
        except ValidationError as error:
            raise MarbleError(f"{cls.name}: {_explained(error, cls.Options)}") from None

    def __init__(self, **options: Any) -> None:
        self.options: Any = self.read_options(options)
        if "normalise" in self.Options.model_fields:
            self.normalise = self.options.normalise

    @classmethod
    def pairs(cls, options: Any) -> int:
        """How many of an epoch's pictures it wants drawn by the base too, for `observe_pairs`."""
        return 0

    @property
    def paired(self) -> int:
        """`pairs` of its own options."""
        return self.pairs(self.options)

    @classmethod
    def owned(cls, options: Any) -> float:
        """Where parameters belong to one reward: the part of all coefficients that its own gradient
        has there. Above 0, every step takes the K gradients."""
        return 0.0

    @property
    def own(self) -> float:
        """`owned` of its own options."""
        return self.owned(self.options)

    def gate(self, k: int, seed: int) -> Gate | None:
        """Which rewards take part in a step; None: all of them."""
        return None

    def observe(
        self,
        means_K: Array,
        stds_K: Array,
        counts_K: Array | None = None,
        advantages_KN: Array | None = None,
    ) -> None:
        """Take note of a step; NaN or a count of 0 marks a reward that did not apply."""
        return None

    def observe_pairs(self, now_Kn: Array, base_Kn: Array) -> dict[str, Array]:
        """Take the scores of paired samples (same prompt and seed: the model's as it is now, the
        base's); what is worth logging, as name → one value per reward."""
        return {}

    def doubts(self, names: Sequence[str], epoch: int) -> list[str]:
        """Sentences on rewards with almost no weight, when it is time for a reminder."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What outlives a step, as JSON types."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`."""
        return None

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


class Normalise(Section):
    normalise: bool = Field(default=True, description="Solve on unit gradients.")


class GramRule(Rule):
    """A rule that solves for its weights. Subclasses define `name` and `weights`."""

    starts_whole: ClassVar[bool] = False
    """Whether the average of the weights begins with the first solve's instead of 1/K."""

    drops_opposed: ClassVar[bool] = False
    """Whether two gradients that cancel out stay out of the solve."""

    Options: ClassVar[type[Section]] = Normalise

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

    normalise = False

    @abstractmethod
    def current(self, preference: Array) -> Array:
        """The weights now, on the simplex."""

    def __call__(self, gram: Array, preference: Array | None = None) -> Weights:
        gram = check_gram(gram)
        chosen = np.ones(len(gram)) if preference is None else np.asarray(preference, float)
        active = np.diagonal(gram) > 0.0
        return Weights(spread(self.current(chosen), active))


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


def _explained(error: ValidationError, options: type[Section]) -> str:
    """The first problem of a rule's options, as a sentence."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = list(options.model_fields)
        return f"there is no option {where!r}. " + (
            nearest(where, known) if known else "It has none."
        )
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"{where} = {problem.get('input')!r}: {problem['msg']}."
