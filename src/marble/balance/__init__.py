"""What a training loop talks to: advantages, losses, K gradients, coefficients in one."""

from marble.balance.balancer import Balancer
from marble.balance.batch import Batch
from marble.balance.plan import Plan, StepReport

__all__ = ["Balancer", "Batch", "Plan", "StepReport"]
