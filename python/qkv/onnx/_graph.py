"""A model that has been read and checked, and how it runs: node after node, in the order in which they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qkv.onnx._node import make_node
from qkv.onnx._operator import Array
from qkv.onnx._table import OPSETS


@dataclass(frozen=True)
class Input:
    """What the graph says about one of its inputs; an extent that is not fixed is None."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None

    def check(self, array: object) -> Array:
        """The array, if it is as the graph says."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"input {self.name}: expected a NumPy array, got {type(array).__name__}")
        if array.dtype != self.dtype:
            raise TypeError(f"input {self.name} is {array.dtype}; expected {self.dtype}")
        if self.shape is not None and not self._fits(array.shape):
            wanted = ", ".join("any" if extent is None else str(extent) for extent in self.shape)
            raise ValueError(f"input {self.name} has shape {array.shape}; expected ({wanted})")
        return array

    def _fits(self, shape: tuple[int, ...]) -> bool:
        assert self.shape is not None
        return len(shape) == len(self.shape) and all(
            wanted in (None, extent) for extent, wanted in zip(shape, self.shape, strict=True)
        )


class Graph:
    """The graph of a model, ready to run any number of times."""

    def __init__(self, model: onnx.ModelProto) -> None:
        """Raises ValueError for whatever cannot be run, with the name of the node or tensor."""
        opset = _opset(model)
        if model.functions:
            raise ValueError(f"the model has a function, {model.functions[0].name!r}; expected operators of ONNX alone")
        graph = model.graph
        self._constants = _constants(graph)
        self._inputs = [_input(info) for info in graph.input]
        _check_unique("input", [each.name for each in self._inputs])
        self._nodes = [make_node(proto, opset, index) for index, proto in enumerate(graph.node)]
        self._outputs = [info.name for info in graph.output]
        self._check_names()

    def run(self, inputs: Mapping[str, object] | Sequence[object]) -> list[Array]:
        """The outputs in the graph's order. The inputs are not changed, and no output is one of them."""
        given = {**self._constants, **self._bind(inputs)}
        values = dict(given)
        for node in self._nodes:
            values.update(node.run(values))
        return [given[name].copy() if name in given else values[name] for name in self._outputs]

    def _bind(self, inputs: Mapping[str, object] | Sequence[object]) -> dict[str, Array]:
        needed = [each for each in self._inputs if each.name not in self._constants]
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        elif isinstance(inputs, list | tuple):
            order = self._inputs if len(inputs) == len(self._inputs) else needed
            if len(inputs) != len(order):
                names = ", ".join(each.name for each in order)
                raise ValueError(f"inputs: {len(inputs)} arrays; expected {len(order)}: {names}")
            named = {each.name: array for each, array in zip(order, inputs, strict=True)}
        else:
            raise TypeError(f"inputs: expected a list or a dict of NumPy arrays, got {type(inputs).__name__}")
        for each in needed:
            if each.name not in named:
                raise ValueError(f"input {each.name} is missing; got {_names(named)}")
        known = {each.name: each for each in self._inputs}
        for name in named:
            if name not in known:
                raise ValueError(f"input {name} is not one of the graph's; expected {_names(known)}")
        return {name: known[name].check(array) for name, array in named.items()}

    def _check_names(self) -> None:
        """Every name is made once, before it is used."""
        made = {*self._constants, *(each.name for each in self._inputs)}
        for node in self._nodes:
            for own, name in node.inputs.items():
                if name not in made:
                    raise ValueError(f"{node.title}: the input {own}, {name!r}, is made by nothing before it")
            for own, name in node.outputs.items():
                if name in made:
                    raise ValueError(f"{node.title}: the output {own}, {name!r}, exists already; expected a new name")
                made.add(name)
        for name in self._outputs:
            if name not in made:
                raise ValueError(f"output {name!r} of the graph is made by nothing in it")


def _opset(model: onnx.ModelProto) -> int:
    versions = {each.version for each in model.opset_import if each.domain in ("", "ai.onnx")}
    if len(versions) != 1:
        raise ValueError(f"the model imports {len(versions)} opsets of ONNX; expected one")
    opset = int(versions.pop())
    if opset not in OPSETS:
        raise ValueError(f"the model has opset {opset}; expected {OPSETS[0]} to {OPSETS[-1]}")
    return opset


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    if graph.sparse_initializer:
        raise ValueError(f"{graph.sparse_initializer[0].values.name!r} is a sparse tensor; expected dense ones")
    _check_unique("initialiser", [tensor.name for tensor in graph.initializer])
    return {tensor.name: _constant(tensor) for tensor in graph.initializer}


def _constant(tensor: onnx.TensorProto) -> Array:
    title = f"the initialiser {tensor.name!r}"
    if tensor.data_location == TensorProto.EXTERNAL:
        raise ValueError(f"{title} keeps its data in another file; expected it in the model")
    _check_known(title, tensor.data_type)
    try:
        array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{title} has data that do not fit its type and dimensions: {error}") from error
    return array


def _input(info: onnx.ValueInfoProto) -> Input:
    tensor = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type" or tensor.elem_type == TensorProto.UNDEFINED:
        raise ValueError(f"input {info.name} is {info.type.WhichOneof('value') or 'of no type'}; expected a tensor")
    _check_known(f"input {info.name}", tensor.elem_type)
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return Input(info.name, np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), shape)


def _check_known(title: str, data_type: int) -> None:
    if data_type == TensorProto.UNDEFINED or data_type not in TensorProto.DataType.values():
        raise ValueError(f"{title} has the element type {data_type}; expected one that this version of onnx knows")


def _check_unique(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"the {kind} {name!r} is there {count} times; expected it once")


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(map(str, names)) or "none"
