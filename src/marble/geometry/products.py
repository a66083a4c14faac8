"""Inner products of all gradients with all, plain and in Adam's metric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 22
"""Elements converted to fp64 at a time."""


def products(rows_BRT: Tensor, weight_T: Tensor | None = None) -> np.ndarray:
    """[B, R, B, R] in fp64: Σ_t weight_t · a_t · b_t of every two rows."""
    b, r, total = rows_BRT.shape
    flat = rows_BRT.reshape(b * r, total)
    out = torch.zeros(b * r, b * r, dtype=torch.float64)
    width = max(1, CHUNK // (b * r))
    for start in range(0, total, width):
        part = flat[:, start : start + width].double()
        other = part if weight_T is None else part * weight_T[start : start + width].double()
        out.addmm_(other, part.T)
    out = 0.5 * (out + out.T)
    return out.reshape(b, r, b, r).numpy()


@dataclass(frozen=True)
class Metrics:
    """Products under M⁰, M¹ and M², M being Adam's diagonal; the latter two None without Adam.

    Adam applies M d: its product with g_k is M¹'s, its squared length M²'s.
    """

    plain: np.ndarray
    adam: np.ndarray | None
    squared: np.ndarray | None


def all_products(rows_BRT: Tensor, metric_T: Tensor | None) -> Metrics:
    """The metric is scaled to mean 1 first, which no angle notices."""
    plain = products(rows_BRT)
    if metric_T is None:
        return Metrics(plain, None, None)
    metric = metric_T.double() / metric_T.double().mean()
    return Metrics(plain, products(rows_BRT, metric), products(rows_BRT, metric.square()))
