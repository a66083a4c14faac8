"""Which parameters get K gradients: the weights of trainable, bias-free linear layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from marble.errors import MarbleError


@dataclass(frozen=True)
class Span:
    """One trainable weight and its place in a flat row of all of them."""

    name: str
    parameter: nn.Parameter
    modules: tuple[nn.Linear, ...]
    """Usually one; more where layers share their weight."""
    start: int
    stop: int

    @property
    def shape(self) -> torch.Size:
        return self.parameter.shape


def find_spans(model: nn.Module) -> list[Span]:
    """All trainable parameters as spans, or an error naming those that cannot be covered.

    Covered is the weight of an ``nn.Linear`` without trainable bias whose ``forward`` is the
    ordinary one, or whose class says so (``plain_linear = True``): LoRA factors, and any other such
    layer.
    """
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(module)

    spans: list[Span] = []
    refused: list[str] = []
    start = 0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        modules = owners[id(parameter)]
        if not all(_covers(module, parameter) for module in modules):
            refused.append(name)
            continue
        stop = start + parameter.numel()
        linears = tuple(module for module in modules if isinstance(module, nn.Linear))
        spans.append(Span(name, parameter, linears, start, stop))
        start = stop
    if refused:
        shown = ", ".join(refused[:8]) + (f" and {len(refused) - 8} more" if refused[8:] else "")
        raise MarbleError(
            f"{len(refused)} trainable parameter(s) get no per-reward gradient: {shown}. Covered "
            "are weights of bias-free nn.Linear layers (LoRA factors); freeze the others with "
            "requires_grad_(False), or train them through such layers."
        )
    if not spans:
        raise MarbleError(
            "The model has no trainable parameter. Add a LoRA (peft), and make sure that its "
            "adapter is active and has requires_grad before building the Jacobian."
        )
    return spans


def accumulator_dtype(spans: list[Span]) -> torch.dtype:
    """fp64 for an fp64 model, fp32 for everything else."""
    wide = any(span.parameter.dtype == torch.float64 for span in spans)
    return torch.float64 if wide else torch.float32


def add_to_grad(parameter: nn.Parameter, value: Tensor) -> None:
    """Adds a full-size ``value`` to ``parameter.grad``, also where the parameter is sharded."""
    from torch.distributed.tensor import DTensor, Replicate

    value = value.view(parameter.shape).to(parameter.dtype)
    if isinstance(parameter, DTensor):
        # Every rank holds the full, reduced value: taking its own shard needs no communication.
        mesh = parameter.device_mesh
        whole = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
        value = whole.redistribute(mesh, parameter.placements)
    if parameter.grad is None:
        parameter.grad = value
    else:
        parameter.grad.add_(value)


def _covers(module: nn.Module, parameter: nn.Parameter) -> bool:
    return (
        isinstance(module, nn.Linear)
        and module.weight is parameter
        and module.bias is None
        and (type(module).forward is nn.Linear.forward or getattr(module, "plain_linear", False))
        and "forward" not in vars(module)
        # nn.MultiheadAttention reads this layer's weight without ever calling the layer.
        and not isinstance(module, NonDynamicallyQuantizableLinear)
    )
