"""From the Gram matrix of K reward gradients to the K coefficients of a step. Numpy fp64 only.

>>> import numpy as np
>>> from marble.harmonise import Harmoniser
>>> balance = Harmoniser("marble", names=("ocr", "aesthetic"), n=10, rho=0.7)
>>> gram = np.array([[4.0, -1.0], [-1.0, 1.0]])  # g_i · g_j
>>> solution = balance.solve(gram)
>>> solution.coefficients_K.round(3)  # c: update with Σ c_k g_k
array([0.375, 0.75 ])
>>> round(solution.harmony["min"], 3)  # the worst cosine with a reward
0.5
"""

from ._debias import debiased_gram
from ._harmony import direction_cosines, harmony, heldout_cosines, summarise
from ._hybrid import gate
from ._min_norm import MinNorm, min_norm_point
from ._opposed import opposed_pairs
from ._progress import Progress
from ._registry import DEFAULT, RULES, get_rule, rule_class
from ._rule import FreeRule, Gate, GramRule, Rule, Weights
from ._schedule import Schedule
from ._solution import Solution
from ._steerable import Steerable, corner
from .harmoniser import Harmoniser

__all__ = [
    "DEFAULT",
    "RULES",
    "FreeRule",
    "Gate",
    "GramRule",
    "Harmoniser",
    "MinNorm",
    "Progress",
    "Rule",
    "Schedule",
    "Solution",
    "Steerable",
    "Weights",
    "corner",
    "debiased_gram",
    "direction_cosines",
    "gate",
    "get_rule",
    "harmony",
    "heldout_cosines",
    "min_norm_point",
    "opposed_pairs",
    "rule_class",
    "summarise",
]
