"""What an operator is, and what its function is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import qkv
from qkv.onnx._layout import blocks

Array: TypeAlias = NDArray[Any]

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
FLOAT16: Final = np.dtype(np.float16)
FLOAT32: Final = np.dtype(np.float32)
FLOAT64: Final = np.dtype(np.float64)
INT64: Final = np.dtype(np.int64)
FLOATS: Final = (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)

#: TensorProto's numbers of the types that a softmax_precision or stash_type may name.
PRECISIONS: Final = {1: FLOAT32, 10: FLOAT16, 11: FLOAT64, 16: BFLOAT16}


@dataclass(frozen=True)
class Attribute:
    """Its type, and what it is where a node leaves it out; None = nothing."""

    type: type[int] | type[float] | type[str]
    default: int | float | str | None = None


@dataclass(frozen=True)
class Call:
    """What a node hands to its operator. An operator complains by qkv's errors; the node adds its name."""

    opset: int
    inputs: Mapping[str, Array]
    """By the operator's own names, without those left out."""
    attributes: Mapping[str, Any]
    """All that the operator has, defaults filled in."""
    wanted: frozenset[str]
    """The outputs that the node names."""

    def flag(self, name: str) -> bool:
        """An attribute that is 0 or 1."""
        value = self.attributes[name]
        if value not in (0, 1):
            raise qkv.ValueError(f"{name} is {value}; expected 0 or 1")
        return bool(value)

    def floats(self, name: str, allowed: Iterable[np.dtype[Any]] = FLOATS) -> Array:
        """A required input of one of these types."""
        return of_type(name, self.inputs[name], allowed)

    def int64s(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """An optional input of indices or lengths, of just this shape."""
        array = self.inputs.get(name)
        if array is None:
            return None
        of_type(name, array, (INT64,))
        if array.shape != shape:
            raise qkv.ShapeError(f"{name} has shape {array.shape}; expected {shape}")
        return array


Compute: TypeAlias = Callable[[Call], dict[str, Array]]


@dataclass(frozen=True)
class Operator:
    """One version of one operator, as far as a graph has to know it."""

    name: str
    since: int
    inputs: tuple[str, ...]
    required: int
    """How many of the inputs may not be left out."""
    outputs: tuple[str, ...]
    """Of which only the first may not be left out."""
    compute: Compute
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


def plain_array(title: str, given: object) -> Array:
    """A NumPy array; of a subclass the array itself. A masked array is refused, whose mask would be lost."""
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"{title}: expected a NumPy array, got numpy.ma.MaskedArray; pass its .data, and what it hides as a mask"
        )
    if not isinstance(given, np.ndarray):
        raise TypeError(f"{title}: expected a NumPy array, got {type(given).__name__}")
    return np.asarray(given)


def of_type(name: str, array: Array, allowed: Iterable[np.dtype[Any]]) -> Array:
    """The array, if it has one of these element types."""
    allowed = tuple(allowed)
    if array.dtype not in allowed:
        raise qkv.DtypeError(f"{name} is {array.dtype}; expected {' or '.join(str(each) for each in allowed)}")
    return array


def rounded(array: Array, dtype: np.dtype[Any]) -> Array:
    """To the type of a result. What lies beyond a narrow type becomes Inf, as the format has it, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype != BFLOAT16 or array.dtype != FLOAT64:
            return array.astype(dtype, copy=False)
        result = np.empty(array.shape, dtype)
        for index in blocks(array.shape):  # ml_dtypes goes through float32, which would be a rounding more
            result[index] = _to_odd(array[index]).astype(dtype)
        return result


def _to_odd(array: Array) -> Array:
    """Double to float32, rounded to odd: a later rounding to fewer bits gives what one rounding of the double gives."""
    narrow = array.astype(np.float32)
    narrow = np.where(np.abs(narrow) > np.abs(array), np.nextafter(narrow, np.float32(0)), narrow)
    odd: Array = (narrow.view(np.uint32) | (narrow != array)).view(np.float32)
    return odd
