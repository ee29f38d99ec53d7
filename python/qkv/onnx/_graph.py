"""A model that has been read and checked, and how it runs: node after node, in the order in which they stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import qkv
from qkv.onnx._node import Node, make_node
from qkv.onnx._operator import Array, plain_array
from qkv.onnx._table import OPSETS


@dataclass(frozen=True)
class Declared:
    """What the graph says about an input or output; what it leaves open is None."""

    title: str
    """How errors name it."""
    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...] | None

    def check(self, array: Array) -> Array:
        """The array, if it is as the graph says."""
        if self.dtype is not None and array.dtype != self.dtype:  # to NumPy None is another word for float64
            raise qkv.DtypeError(f"{self.title} is {array.dtype}; expected {self.dtype}")
        if self.shape is not None and not self._fits(array.shape):
            wanted = ", ".join("any" if extent is None else str(extent) for extent in self.shape)
            raise qkv.ShapeError(f"{self.title} has shape {array.shape}; expected ({wanted})")
        return array

    def _fits(self, shape: tuple[int, ...]) -> bool:
        assert self.shape is not None
        return len(shape) == len(self.shape) and all(
            wanted in (None, extent) for extent, wanted in zip(shape, self.shape, strict=True)
        )


class Graph:
    """The graph of a model, ready to run any number of times."""

    def __init__(self, model: onnx.ModelProto, folder: str | None = None) -> None:
        """Raises qkv.ValueError for whatever cannot be run, with the name of the node or tensor.

        Initialisers may have their data in files of the folder, if there is one.
        """
        opset = _opset(model)
        if model.functions:
            raise qkv.ValueError(
                f"the model has a function, {model.functions[0].name!r}; expected operators of ONNX alone"
            )
        graph = model.graph
        self._inputs = [_declared("input", info) for info in graph.input]
        _check_unique("input", [each.name for each in self._inputs])
        self._nodes = [make_node(proto, opset, index) for index, proto in enumerate(graph.node)]
        self._outputs = [_declared("output", info) for info in graph.output]
        _check_unique("output", [each.name for each in self._outputs])
        self._constants = _constants(graph, folder)
        self._check_names()
        self._unused = _last_uses(self._nodes, [each.name for each in self._outputs])

    def run(self, inputs: Mapping[str, object] | Sequence[object]) -> list[Array]:
        """The outputs in the graph's order. The inputs are not changed, and no output is one of them."""
        given = {**self._constants, **self._bind(inputs)}
        values = dict(given)
        for node, unused in zip(self._nodes, self._unused, strict=True):
            values.update(node.run(values))
            for name in unused:  # so that memory does not grow with the depth of the graph
                del values[name]
        results = [each.check(values[each.name]) for each in self._outputs]
        return [x.copy() if each.name in given else x for each, x in zip(self._outputs, results, strict=True)]

    def _bind(self, inputs: Mapping[str, object] | Sequence[object]) -> dict[str, Array]:
        needed = [each for each in self._inputs if each.name not in self._constants]
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        elif isinstance(inputs, list | tuple):
            order = self._inputs if len(inputs) == len(self._inputs) else needed
            if len(inputs) != len(order):
                names = ", ".join(each.name for each in order)
                raise qkv.ValueError(f"inputs: {len(inputs)} arrays; expected {len(order)}: {names}")
            named = {each.name: array for each, array in zip(order, inputs, strict=True)}
        else:
            raise TypeError(f"inputs: expected a list or a dict of NumPy arrays, got {type(inputs).__name__}")
        for each in needed:
            if each.name not in named:
                raise qkv.ValueError(f"input {each.name} is missing; got {_names(named)}")
        known = {each.name: each for each in self._inputs}
        for name in named:
            if name not in known:
                raise qkv.ValueError(f"input {name} is not one of the graph's; expected {_names(known)}")
        return {name: known[name].check(plain_array(known[name].title, array)) for name, array in named.items()}

    def _check_names(self) -> None:
        """Every name is made once, before it is used."""
        made = {*self._constants, *(each.name for each in self._inputs)}
        for node in self._nodes:
            for own, name in node.inputs.items():
                if name not in made:
                    raise qkv.ValueError(f"{node.title}: the input {own}, {name!r}, is made by nothing before it")
            for own, name in node.outputs.items():
                if name in made:
                    raise qkv.ValueError(
                        f"{node.title}: the output {own}, {name!r}, exists already; expected a new name"
                    )
                made.add(name)
        for each in self._outputs:
            if each.name not in made:
                raise qkv.ValueError(f"output {each.name!r} of the graph is made by nothing in it")


def _opset(model: onnx.ModelProto) -> int:
    versions = {each.version for each in model.opset_import if each.domain in ("", "ai.onnx")}
    if len(versions) != 1:
        raise qkv.ValueError(f"the model imports {len(versions)} opsets of ONNX; expected one")
    opset = int(versions.pop())
    if opset not in OPSETS:
        raise qkv.ValueError(f"the model has opset {opset}; expected {OPSETS[0]} to {OPSETS[-1]}")
    return opset


def _constants(graph: onnx.GraphProto, folder: str | None) -> dict[str, Array]:
    if graph.sparse_initializer:
        raise qkv.ValueError(f"{graph.sparse_initializer[0].values.name!r} is a sparse tensor; expected dense ones")
    _check_unique("initialiser", [tensor.name for tensor in graph.initializer])
    return {tensor.name: _constant(tensor, folder) for tensor in graph.initializer}


def _constant(tensor: onnx.TensorProto, folder: str | None) -> Array:
    title = f"the initialiser {tensor.name!r}"
    if tensor.data_location == TensorProto.EXTERNAL and folder is None:
        raise qkv.ValueError(f"{title} keeps its data in another file; expected it in the model, or the model's path")
    _check_known(title, tensor.data_type)
    try:
        array: Array = numpy_helper.to_array(tensor, folder or "")
    except (ValueError, TypeError, onnx.checker.ValidationError) as error:
        raise qkv.ValueError(f"{title} has data that do not fit its type and dimensions: {error}") from error
    return array


def _declared(kind: str, info: onnx.ValueInfoProto) -> Declared:
    """An input, which has a type, or an output, whose type may be left open."""
    title = f"{kind} {info.name}"
    tensor, value = info.type.tensor_type, info.type.WhichOneof("value")
    typed = value == "tensor_type" and tensor.elem_type != TensorProto.UNDEFINED
    if not typed and (kind == "input" or value not in (None, "tensor_type")):
        raise qkv.ValueError(f"{title} is {value or 'of no type'}; expected a tensor")
    dtype = shape = None
    if typed:
        _check_known(title, tensor.elem_type)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if tensor.HasField("shape"):
        shape = tuple(_extent(dim) for dim in tensor.shape.dim)
    return Declared(title, info.name, dtype, shape)


def _extent(dim: Any) -> int | None:
    """None where it is not fixed: by a name, or by a number below 0, as some exporters say it."""
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _last_uses(nodes: Sequence[Node], kept: Sequence[str]) -> list[list[str]]:
    """By node, the names that nothing reads after it."""
    last = {}
    for index, node in enumerate(nodes):
        last.update(dict.fromkeys((*node.inputs.values(), *node.outputs.values()), index))
    unused: list[list[str]] = [[] for _ in nodes]
    for name in last.keys() - set(kept):
        unused[last[name]].append(name)
    return unused


def _check_known(title: str, data_type: int) -> None:
    if data_type == TensorProto.UNDEFINED or data_type not in TensorProto.DataType.values():
        raise qkv.ValueError(f"{title} has the element type {data_type}; expected one that this version of onnx knows")


def _check_unique(kind: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise qkv.ValueError(f"the {kind} {name!r} is there {count} times; expected it once")


def _names(names: Mapping[str, object]) -> str:
    return ", ".join(map(str, names)) or "none"
