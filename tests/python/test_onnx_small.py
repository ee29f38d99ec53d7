"""qkv.onnx: RotaryEmbedding, RMSNormalization and TensorScatter against onnx's reference, computed in double."""

from __future__ import annotations

import fractions
from typing import Any

import numpy as np
import pytest
from support import optional

onnx: Any = optional("onnx")
if onnx:
    import ml_dtypes
    from onnx import helper
    from onnx.reference import ReferenceEvaluator
    from onnx_models import make_model

    import qkv.onnx
    from qkv.onnx._operator import rounded

pytestmark = pytest.mark.needs("onnx")

#: One rounding, of the last step; float32 and float64 also have those of the arithmetic in double.
ROUNDING = 0.51


def run_both(node: Any, inputs: dict[str, np.ndarray], opset: int = 25) -> tuple[np.ndarray, np.ndarray]:
    """qkv's result, and that of the reference on the same numbers as doubles."""
    (actual,) = qkv.onnx.run(make_model([node], inputs, ["y"], opset=opset), inputs)
    wide = {name: x if x.dtype == np.int64 else x.astype(np.float64) for name, x in inputs.items()}
    (expected,) = ReferenceEvaluator(make_model([node], wide, ["y"], opset=opset)).run(None, wide)
    return actual, expected


def assert_rounded_once(actual: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    assert actual.dtype == dtype
    assert actual.shape == expected.shape
    unit = np.abs(expected) * float(ml_dtypes.finfo(dtype).eps)
    assert (np.abs(actual.astype(np.float64) - expected) <= ROUNDING * unit + 1e-12).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary_dim", [0, 4])
@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("positions", [False, True])
def test_rotary_embedding(
    dtype: str, interleaved: int, rotary_dim: int, axes: int, positions: bool, rng: np.random.Generator
) -> None:
    batch, num_heads, length, dim = 2, 3, 5, 8
    shape = (batch, num_heads, length, dim) if axes == 4 else (batch, length, num_heads * dim)
    pairs = (rotary_dim or dim) // 2
    angles = rng.uniform(0, 6, (11, pairs) if positions else (batch, length, pairs))
    inputs = {"x": rng.standard_normal(shape), "cos": np.cos(angles), "sin": np.sin(angles)}
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    if positions:
        inputs["positions"] = rng.integers(0, 11, (batch, length))
    attributes: dict[str, int] = {"interleaved": interleaved, "rotary_embedding_dim": rotary_dim}
    if axes == 3:
        attributes["num_heads"] = num_heads
    node = helper.make_node("RotaryEmbedding", list(inputs), ["y"], **attributes)
    assert_rounded_once(*run_both(node, inputs), dtype)


def rms_by_formula(x: np.ndarray, scale: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    wide = x.astype(np.float64)
    root = np.sqrt((wide**2).mean(axes, keepdims=True) + np.float64(np.float32(epsilon)))
    return wide / root * scale.astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("axis", [None, -3, -2, -1, 0, 1, 2])
def test_rms_normalization(dtype: str, axis: int | None, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 5)).astype(dtype)
    scale = rng.standard_normal((4, 5) if axis in (1, -2) else 5).astype(dtype)
    attributes = {} if axis is None else {"axis": axis, "epsilon": 0.3, "stash_type": 11}
    node = helper.make_node("RMSNormalization", ["x", "scale"], ["y"], **attributes)
    (y,) = qkv.onnx.Backend.run_node(node, [x, scale])
    axes = tuple(range(3))[-1 if axis is None else axis :]
    expected = rms_by_formula(x, scale, axes, attributes.get("epsilon", 1e-5))
    if dtype == "float64":
        np.testing.assert_allclose(y, expected, rtol=1e-14)
    else:
        assert_rounded_once(y, expected, dtype)


def test_rms_normalization_takes_the_type_of_scale(rng: np.random.Generator) -> None:
    x, scale = rng.standard_normal((2, 8)).astype(np.float16), rng.standard_normal(8).astype(np.float32)
    node = helper.make_node("RMSNormalization", ["x", "scale"], ["y"])
    (y,) = qkv.onnx.Backend.run_node(node, [x, scale])
    assert_rounded_once(y, rms_by_formula(x, scale, (1,), 1e-5), "float32")
    (y,) = qkv.onnx.Backend.run_node(node, [np.zeros((0, 8), np.float16), scale])
    assert y.shape == (0, 8)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1, 3])
def test_tensor_scatter(mode: str, axis: int, rng: np.random.Generator) -> None:
    past = rng.standard_normal((3, 4, 6, 5))
    shape = list(past.shape)
    shape[axis] = 3
    update = rng.standard_normal(shape)
    size = past.shape[axis]
    starts = rng.integers(0, size if mode == "circular" else size - 3 + 1, 3)
    node = helper.make_node("TensorScatter", ["past", "update", "starts"], ["y"], mode=mode, axis=axis)
    inputs = {"past": past, "update": update, "starts": starts}
    before = past.copy()
    actual, expected = run_both(node, inputs)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(past, before)


@pytest.mark.parametrize("start", [2**63 - 1, 2**63 - 3, -(2**63), -1, 13])
def test_tensor_scatter_goes_round_from_anywhere(start: int) -> None:
    node = helper.make_node("TensorScatter", ["past", "update", "starts"], ["y"], mode="circular")
    past, update = np.zeros((1, 7, 1)), np.arange(1.0, 5.0).reshape(1, 4, 1)
    (y,) = qkv.onnx.Backend.run_node(node, [past, update, np.array([start])])
    expected = np.zeros(7)
    for step in range(4):
        expected[(start + step) % 7] = 1 + step
    assert y[0, :, 0].tolist() == expected.tolist()


def test_tensor_scatter_of_any_type_begins_at_the_front() -> None:
    node = helper.make_node("TensorScatter", ["past", "update"], ["y"])
    for dtype in (np.int8, np.bool_, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16):
        past, update = np.zeros((1, 4, 2), dtype), np.ones((1, 3, 2), dtype)
        (y,) = qkv.onnx.Backend.run_node(node, [past, update])
        assert y.dtype == dtype
        assert y[0, :, 0].astype(int).tolist() == [1, 1, 1, 0]


def test_bfloat16_is_rounded_once() -> None:
    """From double, through float32 but not rounded there: halfway cases are where it shows."""
    numbers = [sign * 2.0**e * (1 + k / 128 + tie) for sign in (1, -1) for e in (-3, 0, 9) for k in (0, 1, 2, 127)
               for tie in (0, 1 / 256, 1 / 256 + 2**-40, 1 / 256 - 2**-40, 2**-40)]  # fmt: skip
    result = rounded(np.array(numbers), np.dtype(ml_dtypes.bfloat16))
    for number, got in zip(numbers, result, strict=True):
        below = int(np.array(number).astype(np.float32).view(np.uint32)) >> 16
        candidates = [(below + step) << 16 for step in (-1, 0, 1)]
        floats = [float(np.uint32(bits).view(np.float32)) for bits in candidates]
        exact = fractions.Fraction(number)
        nearest = min(
            zip(floats, candidates, strict=True), key=lambda c: (abs(fractions.Fraction(c[0]) - exact), c[1] >> 16 & 1)
        )
        assert float(got) == nearest[0]
    special = rounded(np.array([np.nan, np.inf, -np.inf, 1e300, 3.4e38, -0.0]), np.dtype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(special.astype(float), [np.nan, np.inf, -np.inf, np.inf, np.inf, -0.0])
    assert np.signbit(special[-1])
