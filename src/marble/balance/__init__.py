"""The façade over advantages, losses, K gradients and coefficients: what a training loop talks to."""

from marble.balance.balancer import Balancer
from marble.balance.batch import Batch
from marble.balance.plan import Plan, StepReport

__all__ = ["Balancer", "Batch", "Plan", "StepReport"]
