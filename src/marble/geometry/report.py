"""From gradients to the numbers that explain a rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from marble.geometry.gradients import Gradients
from marble.geometry.measured import Measured
from marble.geometry.products import all_products
from marble.geometry.rewards import cosines, signal
from marble.geometry.rules import candidates
from marble.geometry.signal import Array
from marble.geometry.worth import rule


def measure(gradients: Gradients, own_K: Array | None = None) -> dict[str, Any]:
    """Signal, cosines and rules; `own_K` are the coefficients of the run itself, if it has any."""
    others = np.ones((len(gradients.valid_BK), 2), dtype=bool)
    m = Measured(
        gradients.names,
        all_products(gradients.rows_BRT, gradients.metric_T),
        np.concatenate([gradients.valid_BK, others], axis=1),
        gradients.active_BK,
        outside=float(gradients.target == "reward"),
    )
    return {
        "signal": {name: signal(m, products) for name, products in m.spaces.items()},
        "cosines": {name: cosines(m, products) for name, products in m.spaces.items()},
        "rules": {c.label: rule(m, c) for c in candidates(own_K, adam="adam" in m.spaces)},
    }
