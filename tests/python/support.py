"""What several test files share: arrays of a dtype, one that only speaks DLPack, tolerances, and memory checks."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from typing import Any

import numpy as np
import pytest

import qkv

#: Largest allowed error in units of eps * size of the terms; about three times the largest seen.
COEFFICIENT = 24


def optional(module: str) -> Any:
    """The module, or None; tests that use it say ``pytest.mark.needs``."""
    return importlib.import_module(module) if importlib.util.find_spec(module) else None


#: The dtypes that everything takes, by name.
REAL = ["float32", "float64", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array in one of these dtypes."""
    return array.astype(optional("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


#: Scalings of rotary positions, as a configuration has them.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


class DLPackOnly:
    """An array of which only DLPack's two methods can be seen."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def bare_signature(function: Any) -> str:
    """Names and defaults, without the types."""
    signature = inspect.signature(function)
    bare = signature.replace(
        parameters=[p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )
    return str(bare)


def base() -> dict[str, Any]:
    """q, k and v that fit together."""
    return {
        "q": np.ones((2, 4, 3, 8), np.float32),
        "k": np.ones((2, 2, 5, 8), np.float32),
        "v": np.ones((2, 2, 5, 6), np.float32),
    }


def call(**changes: Any) -> Any:
    """A call of attention that is right but for the changes."""
    arguments = {**base(), **changes}
    return qkv.attention(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


def assert_close(actual: Any, expected: Any, *, size: float = 1.0, coefficient: float = COEFFICIENT) -> None:
    """Equal to ``coefficient * eps(actual) * max(1, size)``; infinities and NaN at the same places."""
    actual, expected = np.asarray(actual), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    assert not np.shares_memory(actual, expected)
    tolerance = coefficient * np.finfo(actual.dtype).eps * max(1.0, size)
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=tolerance)


def assert_same_bits(a: Any, b: Any) -> None:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert not np.shares_memory(a, b)
    assert a.tobytes() == b.tobytes()


def strided(array: np.ndarray, rng: np.random.Generator, how: str) -> np.ndarray:
    """The same values in another memory layout, with rubbish around them where there is room."""
    if how == "heads_last":  # [batch, length, heads, dim] seen as [batch, heads, length, dim]
        return np.ascontiguousarray(array.swapaxes(-2, -3)).swapaxes(-2, -3)
    if how == "dim_major":  # last stride is not 1
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "negative":  # every axis runs backwards
        return np.ascontiguousarray(array[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]
    if how == "gaps":  # every second row and column of something larger
        shape = (*array.shape[:-2], 2 * array.shape[-2], 3 * array.shape[-1])
        large = np.full(shape, np.nan, array.dtype)
        view = large[..., ::2, 1::3]
        view[...] = array
        return view
    raise AssertionError(how)
