"""qkv.onnx: random configurations of Attention against the function body of the specification, computed in double."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from support import optional

onnx: Any = optional("onnx")
if onnx:
    import ml_dtypes
    from onnx_models import attention_model, by_function_body

    import qkv.onnx

pytestmark = pytest.mark.needs("onnx")

HEAD_DIM = 16  # 1 / sqrt is 1/4, whose own root is exact: the body takes that in float32

#: Allowed error in units of eps * size of the terms. One rounding at the end, and the arithmetic before it; in bfloat16
#: the weights are rounded as well.
COEFFICIENTS = {"float64": 24, "float32": 24, "float16": 1.5, "bfloat16": 1.5}


class Draw:
    """One configuration: opset, attributes, inputs and outputs that fit together."""

    def __init__(self, rng: np.random.Generator, dtype: Any) -> None:
        self.rng, self.dtype = rng, dtype
        self.opset = int(rng.choice([23, 24, 25]))
        self.batch, self.num_kv_heads, groups = (int(rng.integers(1, 4)) for _ in range(3))
        self.num_heads = self.num_kv_heads * groups
        self.q_len, self.kv_len = (int(rng.integers(1, 9)) for _ in range(2))
        self.value_dim = int(rng.integers(1, 12))
        self.attributes: dict[str, Any] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs = ["Y"]
        self._operands(packed=self._maybe())
        cache = rng.choice(["none", "past", "lengths"] if self.opset >= 24 else ["none", "past"])
        self.total = self.kv_len
        if cache == "past":
            self._past()
        elif cache == "lengths":
            self.inputs["nonpad_kv_seqlen"] = rng.integers(0, self.kv_len + 1, self.batch)
        self._mask()
        self._numbers()

    def _maybe(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def _normal(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(self.dtype)

    def _operands(self, packed: bool) -> None:
        sizes = {
            "Q": (self.num_heads, self.q_len, HEAD_DIM),
            "K": (self.num_kv_heads, self.kv_len, HEAD_DIM),
            "V": (self.num_kv_heads, self.kv_len, self.value_dim),
        }
        for name, (heads, length, dim) in sizes.items():
            shape = (length, heads * dim) if packed else (heads, length, dim)
            self.inputs[name] = self._normal(self.batch, *shape)
        if packed:
            self.attributes |= {"q_num_heads": self.num_heads, "kv_num_heads": self.num_kv_heads}

    def _past(self) -> None:
        past_len = int(self.rng.integers(0, 6))
        self.total += past_len
        for name, dim in (("past_key", HEAD_DIM), ("past_value", self.value_dim)):
            self.inputs[name] = self._normal(self.batch, self.num_kv_heads, past_len, dim)
        self.outputs += ["present_key", "present_value"]

    def _mask(self) -> None:
        kind = self.rng.choice(["none", "bool", "float"])
        if kind == "none":
            return
        shape = [self.batch, self.num_heads, self.q_len, self.total]
        for axis in range(3):
            if self._maybe():
                shape[axis] = 1
        shape = shape[int(self.rng.integers(0, 4)) :]
        shortest = max(1, int(self.inputs.get("nonpad_kv_seqlen", np.array([1])).max()))
        if self.opset >= 24 and self._maybe():
            shape[-1] = int(self.rng.integers(shortest, self.total + 1))
        elif self.opset == 23 and self.rng.random() < 0.2:
            shape[-1] = 1  # broadcasts, where later opsets pad
        visible = self.rng.random(shape) < 0.7
        hidden = np.where(visible, self._normal(*shape), -np.inf).astype(self.dtype)
        self.inputs["attn_mask"] = visible if kind == "bool" else hidden

    def _numbers(self) -> None:
        rng, attributes = self.rng, self.attributes
        attributes["is_causal"] = int(self._maybe())
        if self._maybe():
            attributes["scale"] = float(rng.choice([0.0625, 1.0]))
        if self._maybe():
            attributes["softcap"] = float(rng.choice([0.5, 2.0, 30.0]))
        if self.opset == 25 and self._maybe():
            attributes |= {f"{side}_window_size": int(rng.integers(-1, 5)) for side in ("left", "right")}
        if self._maybe():
            attributes["qk_matmul_output_mode"] = int(rng.integers(0, 4))
            self.outputs.append("qk_matmul_output")

    def describe(self) -> str:
        shapes = {name: (str(array.dtype), array.shape) for name, array in self.inputs.items()}
        return f"opset {self.opset}, {self.attributes}, {shapes}, {self.outputs}"


def in_double(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: x if x.dtype in (np.bool_, np.int64) else x.astype(np.float64) for name, x in inputs.items()}


def assert_within(actual: np.ndarray, expected: np.ndarray, size: float) -> None:
    name = str(actual.dtype)
    eps = float(ml_dtypes.finfo(actual.dtype).eps)
    assert actual.shape == expected.shape
    tolerance = COEFFICIENTS[name] * eps * max(1.0, size)
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", COEFFICIENTS)
@pytest.mark.parametrize("part", range(5))
def test_random_configurations(dtype: str, part: int, request: pytest.FixtureRequest) -> None:
    seed = zlib.crc32(request.node.nodeid.encode())
    for step in range(12):
        draw = Draw(np.random.default_rng([seed, step]), np.dtype(dtype))
        print(f"seed {[seed, step]}: {draw.describe()}")
        model = attention_model(draw.inputs, draw.outputs, opset=draw.opset, **draw.attributes)
        outputs = dict(zip(draw.outputs, qkv.onnx.run(model, draw.inputs), strict=True))
        options = {"opset": draw.opset, **draw.attributes}
        oracle = by_function_body(in_double(draw.inputs), draw.outputs, **options)
        for name, expected in zip(draw.outputs, oracle, strict=True):
            assert outputs[name].dtype == dtype
            finite = expected[np.isfinite(expected)] if name == "qk_matmul_output" else draw.inputs["V"]
            assert_within(outputs[name], expected, float(np.abs(finite).max(initial=0)))
