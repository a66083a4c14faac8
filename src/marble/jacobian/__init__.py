"""Every reward's gradient of a LoRA model in two backward passes, however many rewards."""

from marble.jacobian.jacobian import Jacobian
from marble.jacobian.metric import adam_metric

__all__ = ["Jacobian", "adam_metric"]
