"""The rewards' gradients: their signal, and how far they agree."""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.geometry import signal as sig
from marble.geometry.measured import Measured
from marble.geometry.signal import Array


def signal(m: Measured, products: Array) -> dict[str, Any]:
    """By reward: how much of its one-batch gradient is signal."""

    def estimate(index: Array) -> Array:
        part, valid = sig.subset(products, index), m.valid_BR[index]
        true, one = sig.across(part, valid), sig.within(part, valid)
        return np.stack([np.diagonal(true), sig.signal_share(true, one)])[:, : m.k]

    everyone = np.arange(m.batches)
    (square, share), (square_error, error) = estimate(everyone), sig.jackknife(estimate, m.batches)
    one = np.diagonal(sig.within(products, m.valid_BR))
    half = sig.batches_for_half(share)
    return {
        name: {
            "one_batch_norm2": one[i],
            "signal_norm2": square[i],
            "signal_norm2_error": square_error[i],
            "share": np.clip(share[i], 0.0, 1.0),
            "share_raw": share[i],
            "share_error": error[i],
            "batches_for_half": half[i],
            "resolved": bool(m.resolved_K[i]),
        }
        for i, name in enumerate(m.names)
    }


def cosines(m: Measured, products: Array) -> dict[str, Any]:
    """How far rewards agree: in truth, and as one batch shows it."""

    def estimate(index: Array) -> Array:
        part = sig.subset(products, index)
        cos = sig.true_cosines(sig.across(part, m.valid_BR[index]))
        return np.asarray(cos[: m.k, : m.k])

    true = estimate(np.arange(m.batches))
    return {
        "rewards": m.names,
        "apparent": sig.apparent_cosines(products, m.valid_BR)[: m.k, : m.k],
        "true": np.clip(true, -1.0, 1.0),
        "true_raw": true,
        "true_error": sig.jackknife(estimate, m.batches),
    }
