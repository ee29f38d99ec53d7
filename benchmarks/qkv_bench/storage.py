"""Arrays in the types of dtypes.py, and how far two of them differ."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from qkv_bench.dtypes import BFLOAT16


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's, or for bfloat16 that of ml_dtypes. Raises ValueError where that is not installed."""
    if name != BFLOAT16:
        return np.dtype(name)
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        return found
    except ImportError as error:
        raise ValueError("bfloat16 arrays need the package ml_dtypes") from error


def stored(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """The array, rounded to the type."""
    return array.astype(numpy_dtype(name), copy=False)


def name_of(array: npt.NDArray[Any]) -> str:
    """The name of an array's type."""
    return str(array.dtype)


def relative_difference(result: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """||result - expected|| / ||expected|| over all elements; NaN if one of them is."""
    a, b = (array.astype(np.float64).ravel() for array in (result, expected))
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), np.finfo(np.float64).tiny))


def torch_tensor(torch: Any, array: npt.NDArray[Any]) -> Any:
    """A tensor over the same memory; PyTorch does not know the bfloat16 of NumPy."""
    if name_of(array) == BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
