"""How far scores have moved from their twins'."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def paired_progress(now_Kn: Floats, then_Kn: Floats) -> tuple[Floats, Floats]:
    """Mean gain over twins in standard deviations of `then`, and the twins' correlation, each [K].

    The correlation says whether the score means anything for the picture: of noise it is 0. NaN
    where a reward has fewer than three twins, or `then` no spread; a correlation of 0 where only
    `now` has none.
    """
    both = np.isfinite(now_Kn) & np.isfinite(then_Kn)
    gain, alike = np.full(len(both), np.nan), np.full(len(both), np.nan)
    for k, known in enumerate(both):
        now, then = now_Kn[k, known], then_Kn[k, known]
        if len(now) > 2 and then.std() > 0:
            gain[k] = (now - then).mean() / then.std()
            alike[k] = np.corrcoef(now, then)[0, 1] if now.std() > 0 else 0.0
    return gain, alike
