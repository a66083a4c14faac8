"""Log-likelihood of a text under a CTC recogniser, over all alignments, for a batch."""

from __future__ import annotations

import numpy as np

_TINY = 1e-30


def ctc_log_likelihood(emissions: list[np.ndarray], blanks: list[np.ndarray]) -> np.ndarray:
    """log p(target_i | picture_i) for n pictures, by the forward algorithm (Graves et al. 2006).

    ``emissions[i]`` is ``[T_i, L_i]``: the probability of the target's j-th character at each
    time step. ``blanks[i]`` is ``[T_i]``. The states are blank, c_1, blank, …, c_L, blank; a state
    is entered from itself, the one before, and, over a blank, from the character before it,
    unless both characters are the same. Two characters are taken to be the same when their
    columns are equal at every step, so repeated letters need their blank.
    """
    n = len(emissions)
    steps = np.array([len(b) for b in blanks])
    lengths = np.array([e.shape[1] for e in emissions])
    width = 2 * int(lengths.max(initial=0)) + 1
    log_p = np.full((n, int(steps.max(initial=0)), width), -np.inf)
    may_skip = np.zeros((n, width), dtype=bool)
    for i, (emission, blank) in enumerate(zip(emissions, blanks)):
        length = lengths[i]
        log_p[i, : steps[i], 0 : 2 * length + 1 : 2] = np.log(np.maximum(blank, _TINY))[:, None]
        log_p[i, : steps[i], 1 : 2 * length : 2] = np.log(np.maximum(emission, _TINY))
        differs = (emission[:, 1:] != emission[:, :-1]).any(0)
        may_skip[i, 3 : 2 * length : 2] = differs
    alpha = np.full((n, width), -np.inf)
    result = np.full(n, -np.inf)
    for t in range(log_p.shape[1]):
        if t == 0:
            alpha[:, :2] = log_p[:, 0, :2]
        else:
            one, two = np.full_like(alpha, -np.inf), np.full_like(alpha, -np.inf)
            one[:, 1:] = alpha[:, :-1]
            two[:, 2:] = np.where(may_skip[:, 2:], alpha[:, :-2], -np.inf)
            alpha = np.logaddexp(np.logaddexp(alpha, one), two) + log_p[:, t]
        done = steps == t + 1
        rows = np.flatnonzero(done)
        last = 2 * lengths[rows]
        ends = alpha[rows, last]
        ends = np.logaddexp(ends, np.where(last > 0, alpha[rows, last - 1], -np.inf))
        result[rows] = ends
    return result
