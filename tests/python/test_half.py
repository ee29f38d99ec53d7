"""float16 and bfloat16 from Python: NumPy's own, ml_dtypes', PyTorch's, alone and mixed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, assert_same_bits, optional

import qkv

ml_dtypes: Any = optional("ml_dtypes")
torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")
needs_ml_dtypes = pytest.mark.needs("ml_dtypes")

DTYPES = [
    pytest.param(np.float16, id="float16"),
    pytest.param(getattr(ml_dtypes, "bfloat16", None), id="bfloat16", marks=needs_ml_dtypes),
]
NAMES = ["float16", "bfloat16"]
#: Of out, in multiples of the dtype's epsilon: the rounding at the end, and that of bfloat16 weights.
COEFFICIENT = 1.5
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def inputs(seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 30, 24), (2, 2, 70, 24), (2, 2, 70, 16))]


def float64(*arrays: Any) -> list[np.ndarray]:
    return [array.astype(np.float64) for array in arrays]


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_have_the_dtype_of_q_and_what_is_said_of_them_float32(dtype: Any) -> None:
    q, k, v = (array.astype(dtype) for array in inputs())
    out, lse, logits, weights, stats = qkv.attention(
        q, k, v, causal=True, return_lse=True, return_logits="masked", return_weights=True, return_stats=True
    )
    assert out.dtype == dtype
    for array in (lse, logits, weights, *(member for name, member in stats._asdict().items() if name != "max_key")):
        assert array.dtype == np.float32
    exact, exact_lse, exact_weights = qkv.reference.attention(
        *float64(q, k, v), causal=True, return_lse=True, return_weights=True
    )
    tolerance = COEFFICIENT * EPSILON[np.dtype(dtype).name]
    size = exact_weights @ np.repeat(np.abs(v.astype(np.float64)), 2, axis=1)
    assert (np.abs(out.astype(np.float64) - exact) <= tolerance * size).all()
    np.testing.assert_allclose(lse, exact_lse, rtol=0, atol=1e-5)
    np.testing.assert_allclose(weights, exact_weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("k_dtype", DTYPES)
@pytest.mark.parametrize("v_dtype", [pytest.param(np.float32, id="float32"), *DTYPES])
def test_keys_and_values_of_16_bits_beside_float32(k_dtype: Any, v_dtype: Any) -> None:
    q, k, v = inputs(1)
    k, v = k.astype(k_dtype), v.astype(v_dtype)
    expected = qkv.attention(q, k.astype(np.float32), v.astype(np.float32), softcap=3.0)
    assert_same_bits(qkv.attention(q, k, v, softcap=3.0), expected)


@needs_ml_dtypes
def test_a_query_beside_keys_of_the_other_16_bits_is_rounded_once() -> None:
    q, k, v = inputs(2)
    q, k = q.astype(ml_dtypes.bfloat16), k.astype(np.float16)
    v = v.astype(np.float16)
    wide = qkv.attention(q.astype(np.float32), k, v)
    assert_same_bits(qkv.attention(q, k, v).view(np.uint16), wide.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_read_and_written_where_it_lies(dtype: Any) -> None:
    q, k, v = (array.astype(dtype) for array in inputs(3))
    expected = qkv.attention(q, k, v)
    large = np.zeros((2, 4, 60, 48), dtype)
    out = large[:, :, ::2, 1::3]
    heads_last = [np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2) for array in (q, k, v)]
    assert qkv.attention(*heads_last, out=out) is out
    assert_same_bits(out.view(np.uint16), expected.view(np.uint16))
    assert not large[:, :, 1::2].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("term", [np.float32, None], ids=["float32", "own"])
def test_bias_sinks_and_slopes(dtype: Any, term: Any) -> None:
    q, k, v = (array.astype(dtype) for array in inputs(4))
    rng = np.random.default_rng(5)
    terms = {
        "bias": rng.standard_normal((30, 70)),
        "sinks": rng.standard_normal(4),
        "alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625]),
    }
    rounded = {name: array.astype(dtype) for name, array in terms.items()}
    given = {name: array.astype(term or dtype) for name, array in rounded.items()}
    out, lse = qkv.attention(q, k, v, return_lse=True, **given)
    exact = {name: array.astype(np.float64) for name, array in rounded.items()}
    expected, expected_lse = qkv.reference.attention(*float64(q, k, v), return_lse=True, **exact)
    size = np.abs(v.astype(np.float64)).max()
    assert np.abs(out.astype(np.float64) - expected).max() <= COEFFICIENT * EPSILON[np.dtype(dtype).name] * size
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_merged_parts_are_the_whole(dtype: Any) -> None:
    q, k, v = (array.astype(dtype) for array in inputs(6))
    whole, whole_lse = qkv.attention(q, k, v, return_lse=True)
    parts = [qkv.attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(0, 30), slice(30, 70))]
    out, lse = qkv.merge_states([part[0] for part in parts], [part[1] for part in parts])
    assert out.dtype == dtype
    assert lse.dtype == np.float32
    epsilon = EPSILON[np.dtype(dtype).name]
    assert np.abs(out.astype(np.float64) - whole.astype(np.float64)).max() <= 2 * COEFFICIENT * epsilon
    np.testing.assert_allclose(lse, whole_lse, rtol=0, atol=1e-5)


def as_numpy(tensor: Any) -> np.ndarray:
    """The bits of a 16-bit tensor."""
    return tensor.view(torch.int16).numpy()


@needs_torch
@needs_ml_dtypes
@pytest.mark.parametrize("name", NAMES)
def test_tensors_give_the_bits_of_arrays(name: str) -> None:
    tensors = [torch.from_numpy(array).to(getattr(torch, name)) for array in inputs(7)]
    dtype = np.float16 if name == "float16" else ml_dtypes.bfloat16
    arrays = [as_numpy(tensor).view(dtype) for tensor in tensors]
    out, lse = qkv.attention(*tensors, return_lse=True)
    assert out.dtype == getattr(torch, name)
    assert lse.dtype == torch.float32
    expected, expected_lse = qkv.attention(*arrays, return_lse=True)
    assert_same_bits(as_numpy(out), expected.view(np.int16))
    assert_same_bits(lse.numpy(), expected_lse)
    from_dlpack = qkv.attention(*(DLPackOnly(tensor) for tensor in tensors))
    assert isinstance(from_dlpack, np.ndarray)
    assert_same_bits(from_dlpack.view(np.int16), expected.view(np.int16))


@needs_torch
def test_a_bfloat16_array_without_ml_dtypes_is_a_clear_error() -> None:
    script = """
import sys
sys.modules["ml_dtypes"] = None
import torch, qkv
class Only:
    def __init__(self, tensor): self.tensor = tensor
    def __dlpack__(self, **options): return self.tensor.__dlpack__(**options)
    def __dlpack_device__(self): return self.tensor.__dlpack_device__()
x = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
print(qkv.attention(x, x, x).dtype)
try:
    qkv.attention(Only(x), Only(x), Only(x))
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.splitlines() == [
        "torch.bfloat16",
        "qkv: a NumPy array of bfloat16 needs the package ml_dtypes: pip install ml_dtypes",
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_takes_them_too(dtype: Any) -> None:
    q, k, v = (array.astype(dtype) for array in inputs(8))
    out = qkv.reference.attention(q, k, v)
    expected = qkv.reference.attention(*float64(q, k, v)).astype(dtype)
    assert_same_bits(out.view(np.uint16), expected.view(np.uint16))
