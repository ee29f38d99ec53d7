"""qkv.onnx: models, inputs and calls that are refused, and by what name."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import ones, optional

import qkv

onnx: Any = optional("onnx")
if onnx:
    from onnx import TensorProto, helper
    from onnx_models import attention_node, make_model, value_info

    import qkv.onnx

pytestmark = pytest.mark.needs("onnx")


def norm(x: str = "x", y: str = "y", **attributes: Any) -> Any:
    return helper.make_node("RMSNormalization", [x, x], [y], name=f"make_{y}", **attributes)


GIVEN = {"x": ones(2, 3)}


def one(*nodes: Any, outputs: Any = ("y",), **options: Any) -> Any:
    return make_model(nodes or [norm()], GIVEN, list(outputs), **options)


def changed(change: Callable[[Any], Any], model: Any = None) -> Any:
    model = one() if model is None else model
    change(model)
    return model


def external(model: Any) -> None:
    tensor = model.graph.initializer.add(name="weights", data_type=TensorProto.FLOAT, dims=[3])
    tensor.data_location = TensorProto.EXTERNAL


def short(model: Any) -> None:
    model.graph.initializer.add(name="weights", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"1234")


def function(model: Any) -> None:
    opsets = [helper.make_opsetid("", 25)]
    model.functions.append(helper.make_function("mine", "Twice", ["x"], ["y"], [norm()], opsets))


def control_flow(kind: str) -> Any:
    branch = helper.make_graph([norm()], "branch", [], [helper.make_empty_tensor_value_info("y")])
    names = {"If": ("then_branch", "else_branch")}.get(kind, ("body",))
    return helper.make_node(kind, ["x"], ["y"], name="flow", **dict.fromkeys(names, branch))


def models() -> dict[str, tuple[Any, str]]:
    """Models that are wrong, or that this does not run, and the error."""
    ref = norm()
    ref.attribute.add(name="axis", ref_attr_name="outer", type=onnx.AttributeProto.INT)
    twice = norm(axis=1)
    twice.attribute.append(twice.attribute[0])
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    return {
        "operator": (
            one(helper.make_node("Relu", ["x"], ["y"])),
            "node 0 (Relu): the operator Relu is not known; expected one of Attention, RMS",
        ),
        "domain": (
            one(helper.make_node("Attention", ["x"] * 3, ["y"], domain="com.microsoft")),
            "the domain 'com.microsoft' is not known",
        ),
        "if": (one(control_flow("If")), "node 'flow' (If): control flow is not supported"),
        "loop": (one(control_flow("Loop")), "node 'flow' (Loop): control flow is not supported"),
        "scan": (one(control_flow("Scan")), "node 'flow' (Scan): control flow is not supported"),
        "opset": (one(opset=22), "the model has opset 22; expected 23 to 28"),
        "opset to come": (one(opset=29), "the model has opset 29; expected 23 to 28"),
        "scatter of 23": (
            one(helper.make_node("TensorScatter", ["x", "x"], ["y"]), opset=23),
            "TensorScatter begins with opset 24, the model has 23",
        ),
        "no opset": (changed(lambda model: model.ClearField("opset_import")), "the model imports 0 opsets of ONNX"),
        "two opsets": (
            changed(lambda model: model.opset_import.append(helper.make_opsetid("ai.onnx", 24))),
            "imports 2 opsets",
        ),
        "function": (changed(function), "the model has a function, 'Twice'"),
        "external": (changed(external), "the initialiser 'weights' keeps its data in another file"),
        "short": (changed(short), "the initialiser 'weights' has data that do not fit its type and dimensions"),
        "constant's type": (
            changed(lambda model: model.graph.initializer.add(name="weights", data_type=99)),
            "the initialiser 'weights' has the element type 99; expected one that",
        ),
        "input's type": (
            changed(lambda model: model.graph.input[0].type.tensor_type.__setattr__("elem_type", 99)),
            "input x has the element type 99; expected one that",
        ),
        "sparse": (
            changed(lambda model: model.graph.sparse_initializer.add().values.__setattr__("name", "few")),
            "'few' is a sparse tensor",
        ),
        "same output": (one(norm(), norm()), "node 'make_y' (RMSNormalization): the output Y, 'y', exists already"),
        "an input again": (one(norm(y="x"), outputs="x"), "the output Y, 'x', exists already"),
        "order": (
            one(norm("z"), norm(y="z")),
            "node 'make_y' (RMSNormalization): the input X, 'z', is made by nothing before it",
        ),
        "output twice": (one(outputs=["y", "y"]), "the output 'y' is there 2 times; expected it once"),
        "output's type": (
            changed(lambda model: model.graph.output[0].type.tensor_type.__setattr__("elem_type", 99)),
            "output y has the element type 99; expected one that",
        ),
        "output's kind": (
            changed(lambda model: model.graph.output[0].CopyFrom(sequence)),
            "output s is sequence_type; expected a tensor",
        ),
        "no output": (one(outputs=["y", "z"]), "output 'z' of the graph is made by nothing in it"),
        "same input": (
            changed(lambda model: model.graph.input.append(model.graph.input[0])),
            "the input 'x' is there 2 times",
        ),
        "same constant": (
            changed(lambda model: model.graph.initializer.append(model.graph.initializer[0]), one(constants=GIVEN)),
            "the initialiser 'x' is there 2 times",
        ),
        "sequence": (
            changed(lambda model: model.graph.input.append(sequence)),
            "input s is sequence_type; expected a tensor",
        ),
        "untyped": (
            changed(lambda model: model.graph.input.append(helper.make_empty_tensor_value_info("u"))),
            "input u is of no type",
        ),
        "reference": (one(ref), "the attribute axis refers to one of a function"),
        "twice": (one(twice), "the attribute axis is there twice"),
        "too many outputs": (
            one(helper.make_node("RMSNormalization", ["x", "x"], ["y", "z"])),
            "2 outputs; expected at most 1: Y",
        ),
        "no first output": (
            one(attention_node(["Q", "K", "V"], ("present_key",)), outputs=[]),
            "the output Y is missing",
        ),
    }


MODELS = models() if onnx else {}


@pytest.mark.parametrize("case", MODELS)
def test_models(case: str) -> None:
    model, text = MODELS[case]
    with pytest.raises(qkv.ValueError, match=re.escape(text)):
        qkv.onnx.run(model, GIVEN)
    assert not qkv.onnx.Backend.is_compatible(model)


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ({}, ValueError, "input x is missing; got none"),
        ({"z": 1}, ValueError, "input x is missing; got z"),
        ({**GIVEN, "z": GIVEN["x"]}, ValueError, "input z is not one of the graph's; expected x"),
        ([], ValueError, "inputs: 0 arrays; expected 1: x"),
        ([GIVEN["x"]] * 2, ValueError, "inputs: 2 arrays; expected 1: x"),
        (GIVEN["x"], TypeError, "inputs: expected a list or a dict of NumPy arrays, got ndarray"),
        ([[1.0]], TypeError, "input x: expected a NumPy array, got list"),
        (
            [np.ma.masked_array(ones(2, 3))],
            TypeError,
            "input x: expected a NumPy array, got numpy.ma.MaskedArray; pass",
        ),
        ([ones(2, 3, dtype=float)], qkv.DtypeError, "input x is float64; expected float32"),
        ([ones(2, 4)], qkv.ShapeError, "input x has shape (2, 4); expected (2, 3)"),
        ([ones(3)], qkv.ShapeError, "input x has shape (3,); expected (2, 3)"),
    ],
)
def test_inputs(inputs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        qkv.onnx.run(one(), inputs)


def test_extents_that_are_not_fixed() -> None:
    model = one()
    model.graph.input[0].CopyFrom(value_info("x", GIVEN["x"], ["n", 3]))
    assert qkv.onnx.run(model, [ones(7, 3)])[0].shape == (7, 3)
    with pytest.raises(ValueError, match=re.escape("input x has shape (2, 4); expected (any, 3)")):
        qkv.onnx.run(model, [ones(2, 4)])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert qkv.onnx.run(model, [ones(7, 3)])[0].shape == (7, 3)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert qkv.onnx.run(model, [ones(2, 4)])[0].shape == (2, 4)


def test_outputs_are_as_the_graph_declares() -> None:
    model = one()
    output = model.graph.output[0]
    output.CopyFrom(value_info("y", GIVEN["x"], ["n", 3]))
    assert qkv.onnx.run(model, GIVEN)[0].shape == (2, 3)
    output.CopyFrom(value_info("y", GIVEN["x"], ["n", 4]))
    with pytest.raises(qkv.ShapeError, match=re.escape("output y has shape (2, 3); expected (any, 4)")):
        qkv.onnx.run(model, GIVEN)
    output.CopyFrom(value_info("y", ones(2, 3, dtype=float)))
    with pytest.raises(qkv.DtypeError, match="output y is float32; expected float64"):
        qkv.onnx.run(model, GIVEN)


def test_what_is_no_model(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match="model: expected a ModelProto, bytes or a path, got int"):
        qkv.onnx.run(3, [])
    with pytest.raises(ValueError, match="model: not a serialised ONNX model"):
        qkv.onnx.run(b"\xff" * 10, [])
    for name in ("text.onnx", "text.json", "text.textproto", "text.onnxtxt"):
        (tmp_path / name).write_bytes(b"\xff" * 10)
        with pytest.raises(qkv.ValueError, match="model: not a serialised ONNX model"):
            qkv.onnx.run(tmp_path / name, [])
    with pytest.raises(FileNotFoundError):
        qkv.onnx.run(tmp_path / "none.onnx", [])


def test_run_node() -> None:
    backend, x = qkv.onnx.Backend, GIVEN["x"]
    node = helper.make_node("RMSNormalization", ["x", "w"], ["y"])
    for inputs, error, text in (
        ([x], ValueError, "node 0 (RMSNormalization): 1 arrays; expected 2: x, w"),
        ({"x": x}, ValueError, "node 0 (RMSNormalization): inputs are x; expected x, w"),
        (x, ValueError, "inputs are ndarray; expected x, w"),
        ([x, 1.0], TypeError, "input w: expected a NumPy array, got float"),
        ([x, np.ma.masked_array(x)], TypeError, "input w: expected a NumPy array, got numpy.ma.MaskedArray; pass its"),
    ):
        with pytest.raises(error, match=re.escape(text)):
            backend.run_node(node, inputs)
    with pytest.raises(ValueError, match="opset_version is 22; expected 23 to 28"):
        backend.run_node(node, [x, x], opset_version=22)
    with pytest.raises(ValueError, match="device is 'CUDA'; expected 'CPU'"):
        backend.run_node(node, [x, x], "CUDA")
    with pytest.raises(TypeError, match="run_node: threads not known"):
        backend.run_node(node, [x, x], threads=2)
    with pytest.raises(TypeError, match="node: expected a NodeProto, got str"):
        backend.run_node("RMSNormalization", [x, x])


def test_one_name_has_one_array() -> None:
    backend, x = qkv.onnx.Backend, ones(1, 2, 3, 4)
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    assert backend.run_node(node, [x, x, x])[0].shape == x.shape
    with pytest.raises(qkv.ValueError, match=r"node 0 \(Attention\): input x is named twice and has two arrays"):
        backend.run_node(node, [x, x, 2 * x])
    node = helper.make_node("Attention", ["q", "k", "v"], ["y", "y"])
    with pytest.raises(qkv.ValueError, match=r"node 0 \(Attention\): 2 outputs are named 'y'; expected a name of"):
        backend.run_node(node, [x, x, x])


def test_the_backend_is_as_strict() -> None:
    with pytest.raises(ValueError, match="device is 'CUDA:1'; expected 'CPU'"):
        qkv.onnx.Backend.prepare(one(), "CUDA:1")
    with pytest.raises(TypeError, match="prepare: threads not known"):
        qkv.onnx.Backend.prepare(one(), threads=2)
    with pytest.raises(TypeError, match="run: threads not known"):
        qkv.onnx.Backend.prepare(one()).run(GIVEN, threads=2)
