"""Speed and exactness of the min-norm solver, beside other solvers of the same problem."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._harmony import direction_cosines
from ._linalg import Array
from ._min_norm import min_norm_point

Solver = Callable[[Array], Array]


def bench_solver(ks: Sequence[int] = (5, 16, 64), repeats: int = 30, seed: int = 0) -> dict:
    """Times and gaps on conflicting unit gradients close to Pareto stationarity.

    For each K and solver: `median_ms`, `best_ms`, `worst_gap` (Frank–Wolfe gap, in units of
    cosines) and `worst_cosine` (of the direction with any reward; the exact one is never
    negative) over `repeats` Gram matrices. Solvers: `marble`, `scipy_nnls`, and `torchjd_mgda`
    (its defaults) where TorchJD is installed.
    """
    rng = np.random.default_rng(seed)
    results = []
    for k in ks:
        grams = [_conflicting(k, rng) for _ in range(repeats)]
        for name, solve in _solvers().items():
            results.append({"k": k, "solver": name, **_measure(solve, grams)})
    return {"numpy": np.__version__, "repeats": repeats, "seed": seed, "results": results}


def _measure(solve: Solver, grams: Sequence[Array]) -> dict[str, float]:
    solve(grams[0])  # the first call pays for imports and caches
    seconds, gaps, cosines = [], [], []
    for gram in grams:
        start = time.perf_counter()
        alpha = solve(gram)
        seconds.append(time.perf_counter() - start)
        inner = gram @ alpha
        gaps.append(float(alpha @ inner - inner.min()))
        cosines.append(float(direction_cosines(alpha, gram).min()))
    return {
        "median_ms": 1e3 * float(np.median(seconds)),
        "best_ms": 1e3 * min(seconds),
        "worst_gap": max(max(gaps), 0.0),
        "worst_cosine": min(cosines),
    }


def _conflicting(k: int, rng: np.random.Generator) -> Array:
    rows = rng.standard_normal((k, 4 * k + 16))
    rows -= 0.98 * rows.mean(axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows @ rows.T)


def _solvers() -> dict[str, Solver]:
    solvers: dict[str, Solver] = {
        "marble": lambda gram: min_norm_point(gram).alpha,
        "scipy_nnls": _scipy_nnls,
    }
    torchjd = _torchjd_mgda()
    if torchjd is not None:
        solvers["torchjd_mgda"] = torchjd
    return solvers


def _scipy_nnls(gram: Array) -> Array:
    """NNLS on [F; 1ᵀ]x ≈ [0; 1] with FᵀF = G."""
    from scipy.optimize import nnls

    values, vectors = np.linalg.eigh(gram)
    factor = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    system = np.vstack([factor, np.ones(len(gram))])
    target = np.zeros(len(system))
    target[-1] = 1.0
    x: Any = nnls(system, target)[0]
    return np.asarray(x / x.sum())


def _torchjd_mgda() -> Solver | None:
    try:
        import torch
        from torchjd.aggregation import MGDAWeighting
    except ImportError:
        return None
    weighting = MGDAWeighting()
    return lambda gram: weighting(torch.from_numpy(gram)).numpy()
