"""Runs a text recogniser's ONNX graph by torch: on a GPU, where onnxruntime often has no provider.

Only the operations of PP-OCR's recognisers are known; a graph with another one is refused by name
when it is opened, and the caller stays with onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from marble.errors import MarbleError
from marble.replay import Replayed
from marble.rewards.ocr.onnx_file import Graph, read_onnx

Operation = Callable[[dict[str, Any], list[Tensor]], Tensor]


class TorchGraph:
    """An ONNX model as a function of one tensor. Whole numbers (shapes) stay on the CPU."""

    def __init__(self, file: Path, device: str | torch.device) -> None:
        self.graph: Graph = read_onnx(file)
        self.device = torch.device(device)
        unknown = sorted({node.kind for node in self.graph.nodes} - set(OPERATIONS))
        if unknown:
            raise MarbleError(f"{file}: no torch form of the operations {', '.join(unknown)}")
        if len(self.graph.inputs) != 1:
            raise MarbleError(f"{file}: takes {len(self.graph.inputs)} inputs, not one")
        self._constants = {}
        for name, value in self.graph.constants.items():
            tensor = torch.from_numpy(value.copy())
            self._constants[name] = tensor.to(self.device) if tensor.is_floating_point() else tensor
        last = {name: i for i, node in enumerate(self.graph.nodes) for name in node.inputs}
        # What no later node reads is let go at once: feature maps are large.
        self._drop: list[list[str]] = [[] for _ in self.graph.nodes]
        for name, i in last.items():
            if name not in self._constants and name not in self.graph.outputs:
                self._drop[i].append(name)
        self._replayed = Replayed(self._compute, "reading text")

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        pixels = pixels.to(self.device)
        found: Tensor = (self._replayed if pixels.is_cuda else self._compute)(pixels)
        return found

    def _compute(self, pixels: Tensor) -> Tensor:
        values = dict(self._constants)
        values[self.graph.inputs[0]] = pixels
        for node, drop in zip(self.graph.nodes, self._drop):
            inputs = [values[name] for name in node.inputs if name]
            values[node.outputs[0]] = OPERATIONS[node.kind](node.attributes, inputs)
            for name in drop:
                values.pop(name, None)
        return values[self.graph.outputs[0]]


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Padding before and after, by ONNX's SAME_UPPER."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


def _padded(a: dict[str, Any], x: Tensor, fill: float) -> Tensor:
    kernel, stride = a["kernel_shape"], a.get("strides", [1, 1])
    if a.get("auto_pad", "NOTSET") == "SAME_UPPER":
        top, bottom = _same(x.shape[2], kernel[0], stride[0])
        left, right = _same(x.shape[3], kernel[1], stride[1])
    else:
        top, left, bottom, right = a.get("pads", [0, 0, 0, 0])
    return F.pad(x, (left, right, top, bottom), value=fill) if top + left + bottom + right else x


def _conv(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    x = _padded(a, inputs[0], 0.0)
    bias = inputs[2] if len(inputs) > 2 else None
    return F.conv2d(
        x,
        inputs[1],
        bias,
        stride=a.get("strides", [1, 1]),
        dilation=a.get("dilations", [1, 1]),
        groups=a.get("group", 1),
    )


def _max_pool(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    x = _padded(a, inputs[0], float("-inf"))
    return F.max_pool2d(x, a["kernel_shape"], a.get("strides", [1, 1]))


def _average_pool(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    if any(a.get("pads", [0])):
        raise MarbleError("AveragePool with padding has no torch form here")
    return F.avg_pool2d(inputs[0], a["kernel_shape"], a.get("strides", [1, 1]))


def _batch_norm(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    x, weight, bias, mean, variance = inputs
    return F.batch_norm(x, mean, variance, weight, bias, eps=a.get("epsilon", 1e-5))


def _slice(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    x, starts, ends = inputs[0], inputs[1].tolist(), inputs[2].tolist()
    axes = inputs[3].tolist() if len(inputs) > 3 else list(range(len(starts)))
    steps = inputs[4].tolist() if len(inputs) > 4 else [1] * len(starts)
    index = [slice(None)] * x.dim()
    for axis, start, end, step in zip(axes, starts, ends, steps):
        index[axis] = slice(start, end, step)
    return x[tuple(index)]


def _reshape(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    shape = [inputs[0].shape[i] if n == 0 else n for i, n in enumerate(inputs[1].tolist())]
    return inputs[0].reshape(shape)


def _squeeze(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    axes = inputs[1].tolist() if len(inputs) > 1 else a["axes"]
    return inputs[0].squeeze(tuple(axes))


def _unsqueeze(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    x = inputs[0]
    for axis in sorted(inputs[1].tolist() if len(inputs) > 1 else a["axes"]):
        x = x.unsqueeze(axis)
    return x


def _mean(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    return inputs[0].mean(a["axes"], keepdim=bool(a.get("keepdims", 1)))


def _hard_sigmoid(a: dict[str, Any], inputs: list[Tensor]) -> Tensor:
    return (inputs[0] * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp(0, 1)


OPERATIONS: dict[str, Operation] = {
    "Identity": lambda a, x: x[0],
    "Add": lambda a, x: x[0] + x[1],
    "Sub": lambda a, x: x[0] - x[1],
    "Mul": lambda a, x: x[0] * x[1],
    "Div": lambda a, x: x[0] / x[1],
    "Pow": lambda a, x: x[0] ** x[1],
    "Sqrt": lambda a, x: x[0].sqrt(),
    "Erf": lambda a, x: x[0].erf(),
    "Relu": lambda a, x: x[0].relu(),
    "Sigmoid": lambda a, x: x[0].sigmoid(),
    "HardSigmoid": _hard_sigmoid,
    "Softmax": lambda a, x: x[0].softmax(a.get("axis", -1)),
    "MatMul": lambda a, x: x[0] @ x[1],
    "Transpose": lambda a, x: x[0].permute(a["perm"]),
    "Concat": lambda a, x: torch.cat(x, a["axis"]),
    "Shape": lambda a, x: torch.tensor(x[0].shape),
    "ReduceMean": _mean,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Slice": _slice,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
}
