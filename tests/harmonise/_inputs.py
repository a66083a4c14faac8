"""Families of gradients: matrices J [K, D] whose rows are the rewards' gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

FAMILIES = (
    "random",
    "low_rank",
    "aligned",
    "conflicting",
    "stationary",
    "duplicated",
    "opposed",
    "rank_one",
    "near_singular",
    "near_duplicated",
    "tiny",
    "huge",
    "row_scaled",
)
# There the Gram matrix determines the direction to 1e-9: in the others rewards differ by less than
# the rounding of their products, and only ‖d‖² is determined.
DETERMINED = tuple(name for name in FAMILIES if name != "near_duplicated")


def gradients(family: str, k: int, rng: np.random.Generator) -> np.ndarray:
    """J [k, D] of a family, rows non-zero."""
    width = k + int(rng.integers(1, 60))
    rows = rng.standard_normal((k, width))
    if family == "low_rank":
        rows = rng.standard_normal((k, 3)) @ rng.standard_normal((3, width))
    elif family == "aligned":
        rows = 0.3 * rows + 2.0 * rng.standard_normal(width)
    elif family == "conflicting":
        rows = rows - rows.mean(axis=0) * (1.0 - 10.0 ** rng.uniform(-3, -1))
    elif family == "stationary" and k > 1:
        rows[-1] = -rng.dirichlet(np.ones(k - 1)) @ rows[:-1]
    elif family == "duplicated":
        rows = rows[rng.integers(0, max(1, k // 2), k)]
    elif family == "opposed":
        rows[k // 2 :] = -rows[: k - k // 2] + 0.01 * rows[k // 2 :]
    elif family == "rank_one":
        rows = rng.standard_normal((k, 1)) * rows[0]
    elif family in ("near_singular", "near_duplicated"):
        low, high = (-4, -2) if family == "near_singular" else (-12, -5)
        noise = 10.0 ** rng.uniform(low, high) * rng.standard_normal(rows.shape)
        rows = rows[rng.integers(0, max(1, k // 2), k)] + noise
    elif family == "tiny":
        rows = rows * 1e-6
    elif family == "huge":
        rows = rows * 1e6
    elif family == "row_scaled":
        rows = rows * 10.0 ** rng.uniform(-6, 6, (k, 1))
    return rows


def gram(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.T


@st.composite
def jacobians(draw, families=FAMILIES, min_k: int = 1, max_k: int = 64) -> np.ndarray:
    family = draw(st.sampled_from(families))
    k = draw(st.integers(min_k, max_k))
    return gradients(family, k, np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
