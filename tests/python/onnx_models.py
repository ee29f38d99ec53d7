"""Small ONNX models for the tests, and what the specification's own text of an operator computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

ATTENTION_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
ATTENTION_OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def value_info(name: str, array: np.ndarray, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    """The declaration of an array, of its own shape or another."""
    dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, dtype, array.shape if shape is None else shape)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    *,
    opset: int = 25,
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A model whose inputs are as these arrays; its outputs declare no shape."""
    infos = [value_info(name, array) for name, array in inputs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", infos, results, initializer=tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def attention_node(inputs: Sequence[str], outputs: Sequence[str] = ("Y",), **attributes: Any) -> onnx.NodeProto:
    """A node with these of Attention's inputs and outputs, each under its own name; the others are left out."""

    def with_gaps(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
        listed = [name if name in wanted else "" for name in names]
        while not listed[-1]:
            listed.pop()
        return listed

    ins, outs = with_gaps(inputs, ATTENTION_INPUTS), with_gaps(outputs, ATTENTION_OUTPUTS)
    return helper.make_node("Attention", ins, outs, name="attend", **attributes)


def attention_model(inputs: Mapping[str, np.ndarray], outputs: Sequence[str] = ("Y",), **options: Any) -> Any:
    """A model of one Attention; options are its attributes, and ``opset``."""
    opset = options.pop("opset", 25)
    return make_model([attention_node(list(inputs), outputs, **options)], inputs, outputs, opset=opset)


def by_function_body(inputs: Mapping[str, np.ndarray], outputs: Sequence[str], **options: Any) -> list[np.ndarray]:
    """What Attention's function body gives, which defines the operator in terms of simpler ones."""
    opset = options.pop("opset", 25)
    node = attention_node(list(inputs), outputs, **options)
    types = [value_info(name, inputs[name]).type if name else onnx.TypeProto() for name in node.input]
    schema = onnx.defs.get_schema("Attention", opset)
    text = schema.get_context_dependent_function_with_opset_version(
        schema.since_version, node.SerializeToString(), [each.SerializeToString() for each in types]
    )
    body = onnx.FunctionProto.FromString(text)
    model = make_model(body.node, inputs, outputs, opset=schema.since_version)
    with np.errstate(all="ignore"):
        results: list[np.ndarray] = ReferenceEvaluator(model).run(None, dict(inputs))
    return results
