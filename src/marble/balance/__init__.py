"""What a training loop talks to: advantages, losses, K gradients, coefficients in one."""

from marble.balance.balancer import Balancer
from marble.balance.batch import Batch
from marble.balance.plan import Plan
from marble.balance.report import StepReport

__all__ = ["Balancer", "Batch", "Plan", "StepReport"]
