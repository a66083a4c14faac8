"""Why a reward does not rise: a run folder → findings in words, with the numbers behind them.

Knows files only; never imports torch. A run that is going on is looked at as far as it has come.
"""

from marble.diagnose.evidence import Evidence, gather
from marble.diagnose.findings import Diagnosis, Finding, diagnose

__all__ = ["Diagnosis", "Evidence", "Finding", "diagnose", "gather"]
