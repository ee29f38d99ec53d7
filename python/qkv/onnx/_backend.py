"""The two ways in: a function, and the class that programs for onnx.backend expect."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep

import qkv
from qkv.onnx._graph import Graph
from qkv.onnx._node import make_node
from qkv.onnx._operator import Array, plain_array
from qkv.onnx._table import OPSETS

__all__ = ["Backend", "Prepared", "run"]


def run(
    model: onnx.ModelProto | bytes | str | os.PathLike[str], inputs: Mapping[str, object] | Sequence[object]
) -> list[Array]:
    """Runs a model once.

    Parameters
    ----------
    model : ModelProto, bytes or path
        The model, serialised, or the file of it. Initialisers in files beside it are read if it is a path.
    inputs : dict or list of NumPy arrays
        By name, or in the graph's order (bfloat16 as ``ml_dtypes`` has it). Inputs that have an initialiser may be left
        out.

    Returns
    -------
    list of arrays
        The outputs in the graph's order.

    Raises
    ------
    ValueError
        A model that cannot be run (an operator, attribute or opset that is not known, control flow, functions, names
        that do not fit together), inputs missing or not in the graph, numbers that do not fit. The text names the node
        or input, what was seen and what was expected.
    ShapeError
        A ValueError: shapes that do not fit an operator, or what the graph says of an input or output.
    DtypeError
        A TypeError: an element type that is not that of the graph, or that an operator does not have.
    TypeError
        What is no model, node or plain NumPy array.
    OSError
        A file that cannot be read.
    """
    return _graph(model).run(inputs)


class Prepared(BackendRep):  # type: ignore[misc]
    """A model that has been checked, to be run any number of times."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs in the graph's order; inputs as of `run`."""
        _check_none("run", kwargs)
        return tuple(self._graph.run(inputs))


class Backend(OnnxBackend):  # type: ignore[misc]
    """qkv as a backend in the sense of ``onnx.backend.base``: ``Backend.prepare(model).run(inputs)``."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether `prepare` would take the model."""
        try:
            cls.prepare(model, device, **kwargs)
        except (ValueError, TypeError):
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        """Checks a model. Raises as `run`, and ValueError for a device that is not the CPU."""
        _check_device(device)
        _check_none("prepare", kwargs)
        return Prepared(_graph(model))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Array, ...]:
        """Runs a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Runs one node; the outputs that it names, in order.

        ``inputs`` are those that the node names, in a list in its order or in a dict by their names; ``outputs_info``
        is not needed. ``opset_version`` chooses the operator's version, otherwise the newest that is known.
        """
        _check_device(device)
        opset = kwargs.pop("opset_version", OPSETS[-1])
        _check_none("run_node", kwargs)
        if not isinstance(node, onnx.NodeProto):
            raise TypeError(f"node: expected a NodeProto, got {type(node).__name__}")
        if opset not in OPSETS:
            raise qkv.ValueError(f"opset_version is {opset}; expected {OPSETS[0]} to {OPSETS[-1]}")
        checked = make_node(node, opset, 0)
        return tuple(checked.run(_bound(checked.title, [name for name in node.input if name], inputs)).values())

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is the CPU."""
        return device in ("CPU", "CPU:0")


def _graph(model: object) -> Graph:
    """A model that has been checked; data in other files are looked for in the folder of its own."""
    folder = None
    if isinstance(model, str | os.PathLike):
        folder = os.path.dirname(os.fspath(model)) or "."
    return Graph(_load(model), folder)


def _load(model: object) -> onnx.ModelProto:
    if isinstance(model, onnx.ModelProto):
        return model
    try:
        if isinstance(model, bytes):
            return onnx.load_model_from_string(model)
        if isinstance(model, str | os.PathLike):
            # Whatever its name ends with; and the graph reads data in other files once it knows that it can be run.
            return onnx.load(os.fspath(model), format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise qkv.ValueError(f"model: not a serialised ONNX model ({error})") from error
    raise TypeError(f"model: expected a ModelProto, bytes or a path, got {type(model).__name__}")


def _bound(title: str, names: Sequence[str], inputs: Any) -> dict[str, Array]:
    """The arrays of a single node by name; a name may stand in it twice."""
    if isinstance(inputs, list | tuple):
        if len(inputs) != len(names):
            raise qkv.ValueError(f"{title}: {len(inputs)} arrays; expected {len(names)}: {', '.join(names)}")
        inputs = _by_name(title, names, inputs)
    if not isinstance(inputs, Mapping) or set(inputs) != set(names):
        seen = ", ".join(map(str, inputs)) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise qkv.ValueError(f"{title}: inputs are {seen}; expected {', '.join(names)}")
    return {name: plain_array(f"{title}: input {name}", array) for name, array in inputs.items()}


def _by_name(title: str, names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Any]:
    """One value has one name: a list that has another array for it would lose one of them."""
    named: dict[str, Any] = {}
    for name, array in zip(names, arrays, strict=True):
        if named.setdefault(name, array) is not array:
            raise qkv.ValueError(
                f"{title}: input {name} is named twice and has two arrays; expected the same one twice"
            )
    return named


def _check_device(device: str) -> None:
    if not Backend.supports_device(device):
        raise qkv.ValueError(f"device is {device!r}; expected 'CPU'")


def _check_none(function: str, kwargs: Mapping[str, Any]) -> None:
    if kwargs:
        raise TypeError(f"{function}: {', '.join(kwargs)} not known; expected no more arguments")
