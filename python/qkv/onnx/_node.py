"""One node: which operator it is, its attributes, and the names of what goes in and comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx
from onnx import AttributeProto, helper

from qkv.onnx._operator import Array, Attribute, Call, Operator
from qkv.onnx._table import find_operator

_CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})
_TYPES: Final = {int: AttributeProto.INT, float: AttributeProto.FLOAT, str: AttributeProto.STRING}
_DEFAULT_DOMAINS: Final = ("", "ai.onnx")


@dataclass(frozen=True)
class Node:
    """A node that has been checked: it can be run as soon as its inputs are there."""

    title: str
    """How errors name it."""
    opset: int
    operator: Operator
    attributes: Mapping[str, Any]
    inputs: Mapping[str, str]
    """Names in the graph, by those of the operator; inputs left out are not there."""
    outputs: Mapping[str, str]

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by their names in the graph. The operator's complaints get the node's name."""
        inputs = {own: values[name] for own, name in self.inputs.items()}
        call = Call(self.opset, inputs, self.attributes, frozenset(self.outputs))
        try:
            results = self.operator.compute(call)
        except TypeError as error:
            raise TypeError(f"{self.title}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{self.title}: {error}") from error
        return {name: results[own] for own, name in self.outputs.items()}


def make_node(proto: onnx.NodeProto, opset: int, index: int) -> Node:
    """Reads a node. ValueError where it is not one of the operators known here, or not as its operator has it."""
    title = f"node {proto.name!r} ({proto.op_type})" if proto.name else f"node {index} ({proto.op_type})"
    try:
        _check_kind(proto)
        operator = find_operator(proto.op_type, opset)
        attributes = _attributes(proto.attribute, operator)
        inputs = _named("input", proto.input, operator.inputs, operator.required)
        outputs = _named("output", proto.output, operator.outputs, 1)
    except ValueError as error:
        raise ValueError(f"{title}: {error}") from error
    return Node(title, opset, operator, attributes, inputs, outputs)


def _check_kind(proto: onnx.NodeProto) -> None:
    if proto.domain not in _DEFAULT_DOMAINS:
        raise ValueError(f"the domain {proto.domain!r} is not known; expected the operators of ONNX itself")
    if proto.op_type in _CONTROL_FLOW:
        raise ValueError("control flow is not supported; expected a graph without If, Loop and Scan")


def _named(kind: str, given: Sequence[str], names: Sequence[str], required: int) -> dict[str, str]:
    """The graph's names by the operator's; "" is one that is left out, as is what is cut off at the end."""
    if len(given) > len(names):
        raise ValueError(f"{len(given)} {kind}s; expected at most {len(names)}: {', '.join(names)}")
    found = {own: name for own, name in zip(names, given, strict=False) if name}
    for own in names[:required]:
        if own not in found:
            raise ValueError(f"the {kind} {own} is missing; expected {', '.join(names[:required])}")
    return found


def _attributes(protos: Sequence[AttributeProto], operator: Operator) -> dict[str, Any]:
    values = {name: attribute.default for name, attribute in operator.attributes.items()}
    seen = set()
    for proto in protos:
        if proto.name not in operator.attributes:
            known = ", ".join(sorted(operator.attributes))
            raise ValueError(
                f"the attribute {proto.name} is not known to {operator.name}-{operator.since}; has {known}"
            )
        if proto.name in seen:
            raise ValueError(f"the attribute {proto.name} is there twice; expected it once")
        seen.add(proto.name)
        values[proto.name] = _value(proto, operator.attributes[proto.name])
    return values


def _value(proto: AttributeProto, attribute: Attribute) -> Any:
    if proto.ref_attr_name:
        raise ValueError(f"the attribute {proto.name} refers to one of a function; expected a value")
    if proto.type != _TYPES[attribute.type]:
        seen = AttributeProto.AttributeType.Name(proto.type)
        raise ValueError(f"the attribute {proto.name} is of type {seen}; expected {attribute.type.__name__}")
    value = helper.get_attribute_value(proto)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
