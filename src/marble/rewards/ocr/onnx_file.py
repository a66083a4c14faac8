"""Reads an ONNX file without the ``onnx`` package: the few fields of its protobuf that we need."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from marble.errors import MarbleError

#: TensorProto.DataType → numpy; the recognisers hold nothing else.
_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}


@dataclass
class Node:
    """One operation: names of what it reads and writes, and its attributes."""

    kind: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class Graph:
    nodes: list[Node]
    constants: dict[str, np.ndarray]
    inputs: list[str]
    outputs: list[str]
    metadata: dict[str, str]


def read_onnx(file: Path) -> Graph:
    """The graph of a model file, its nodes in the order in which they can run."""
    try:
        return _model(memoryview(Path(file).read_bytes()))
    except (OSError, IndexError, KeyError, ValueError, struct.error) as error:
        raise MarbleError(f"cannot read the ONNX model {file}: {error}") from error


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message's fields: an int, or the bytes of what is length-delimited."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"unknown wire type {kind}")
        yield key >> 3, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(value: memoryview) -> str:
    return bytes(value).decode()


def _packed(value: Any) -> list[int]:
    """Repeated integers, which a writer may pack into one field."""
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(_signed(one))
    return found


def _model(data: memoryview) -> Graph:
    graph: Graph | None = None
    metadata: dict[str, str] = {}
    for number, value in _fields(data):
        if number == 7:
            graph = _graph(value)
        elif number == 14:
            entry = {n: _text(v) for n, v in _fields(value)}
            metadata[entry[1]] = entry.get(2, "")
    if graph is None:
        raise ValueError("it holds no graph")
    graph.metadata = metadata
    return graph


def _graph(data: memoryview) -> Graph:
    graph = Graph([], {}, [], [], {})
    for number, value in _fields(data):
        if number == 1:
            graph.nodes.append(_node(value))
        elif number == 5:
            name, tensor = _tensor(value)
            graph.constants[name] = tensor
        elif number in (11, 12):
            name = next(_text(v) for n, v in _fields(value) if n == 1)
            (graph.inputs if number == 11 else graph.outputs).append(name)
    graph.inputs = [name for name in graph.inputs if name not in graph.constants]
    return graph


def _node(data: memoryview) -> Node:
    node = Node()
    for number, value in _fields(data):
        if number == 1:
            node.inputs.append(_text(value))
        elif number == 2:
            node.outputs.append(_text(value))
        elif number == 4:
            node.kind = _text(value)
        elif number == 5:
            name, attribute = _attribute(value)
            node.attributes[name] = attribute
    return node


def _attribute(data: memoryview) -> tuple[str, Any]:
    name, found, many = "", None, []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            found = struct.unpack("<f", value)[0]
        elif number == 3:
            found = _signed(value)
        elif number == 4:
            found = _text(value)
        elif number == 5:
            found = _tensor(value)[1]
        elif number == 8:
            many += _packed(value)
    return name, many or found


def _tensor(data: memoryview) -> tuple[str, np.ndarray]:
    shape: list[int] = []
    kind, name, raw = 1, "", None
    plain: list[Any] = []
    for number, value in _fields(data):
        if number == 1:
            shape += _packed(value)
        elif number == 2:
            kind = value
        elif number == 4:
            plain += np.frombuffer(value, dtype="<f4").tolist()
        elif number in (5, 7):
            plain += _packed(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = value
    kind_of = _TYPES[kind]
    values: np.ndarray = np.array(plain, kind_of) if raw is None else np.frombuffer(raw, kind_of)
    return name, np.asarray(values).reshape(shape)
