"""What the gradients of a run's rewards really look like: signal, noise, and what rules make of it.

A gradient from one batch is its expectation, the *true* gradient, plus noise. Products of gradients
from independent batches tell the two apart; from them follow how much of a reward's gradient is
signal, how far rewards really agree, and what a rule's direction is worth to every reward.
"""

from marble.geometry.gradients import Gradients, collect
from marble.geometry.report import measure

__all__ = ["Gradients", "collect", "measure"]
