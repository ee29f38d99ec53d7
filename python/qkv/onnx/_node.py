"""One node: which operator it is, its attributes, and the names of what goes in and comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx
from onnx import AttributeProto, helper

import qkv
from qkv.onnx._operator import Array, Attribute, Call, Operator
from qkv.onnx._table import find_operator

_CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})
_TYPES: Final = {int: AttributeProto.INT, float: AttributeProto.FLOAT, str: AttributeProto.STRING}
_DEFAULT_DOMAINS: Final = ("", "ai.onnx")

#: What an operator may raise; with the name of the node in front an error stays of its kind.
_KINDS: Final = (qkv.ShapeError, qkv.DtypeError, qkv.ValueError, TypeError)


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
        except (ValueError, TypeError) as error:
            raise _titled(self.title, error) from error
        return {name: results[own] for own, name in self.outputs.items()}


def _titled(title: str, error: Exception) -> Exception:
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), qkv.ValueError)
    return kind(f"{title}: {error}")


def make_node(proto: onnx.NodeProto, opset: int, index: int) -> Node:
    """Reads a node. qkv.ValueError where it is not one of the operators known here, or not as its operator has it."""
    title = f"node {proto.name!r} ({proto.op_type})" if proto.name else f"node {index} ({proto.op_type})"
    try:
        _check_kind(proto)
        operator = find_operator(proto.op_type, opset)
        attributes = _attributes(proto.attribute, operator)
        inputs = _named("input", proto.input, operator.inputs, operator.required)
        outputs = _named("output", proto.output, operator.outputs, 1)
    except ValueError as error:
        raise _titled(title, error) from error
    return Node(title, opset, operator, attributes, inputs, outputs)


def _check_kind(proto: onnx.NodeProto) -> None:
    if proto.domain not in _DEFAULT_DOMAINS:
        raise qkv.ValueError(f"the domain {proto.domain!r} is not known; expected the operators of ONNX itself")
    if proto.op_type in _CONTROL_FLOW:
        raise qkv.ValueError("control flow is not supported; expected a graph without If, Loop and Scan")


def _named(kind: str, given: Sequence[str], names: Sequence[str], required: int) -> dict[str, str]:
    """The graph's names by the operator's; "" is one that is left out, as is what is cut off at the end."""
    if len(given) > len(names):
        raise qkv.ValueError(f"{len(given)} {kind}s; expected at most {len(names)}: {', '.join(names)}")
    found = {own: name for own, name in zip(names, given, strict=False) if name}
    for name, count in Counter(found.values()).items():
        if kind == "output" and count > 1:
            raise qkv.ValueError(f"{count} outputs are named {name!r}; expected a name of its own for each")
    for own in names[:required]:
        if own not in found:
            raise qkv.ValueError(f"the {kind} {own} is missing; expected {', '.join(names[:required])}")
    return found


def _attributes(protos: Sequence[AttributeProto], operator: Operator) -> dict[str, Any]:
    values = {name: attribute.default for name, attribute in operator.attributes.items()}
    seen = set()
    for proto in protos:
        if proto.name not in operator.attributes:
            known = ", ".join(sorted(operator.attributes))
            raise qkv.ValueError(
                f"the attribute {proto.name} is not known to {operator.name}-{operator.since}; has {known}"
            )
        if proto.name in seen:
            raise qkv.ValueError(f"the attribute {proto.name} is there twice; expected it once")
        seen.add(proto.name)
        values[proto.name] = _value(proto, operator.attributes[proto.name])
    return values


def _value(proto: AttributeProto, attribute: Attribute) -> Any:
    if proto.ref_attr_name:
        raise qkv.ValueError(f"the attribute {proto.name} refers to one of a function; expected a value")
    if proto.type != _TYPES[attribute.type]:
        seen = AttributeProto.AttributeType.Name(proto.type)
        raise qkv.ValueError(f"the attribute {proto.name} is of type {seen}; expected {attribute.type.__name__}")
    value = helper.get_attribute_value(proto)
    return value.decode(errors="replace") if isinstance(value, bytes) else value
