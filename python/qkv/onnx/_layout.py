"""How arrays lie: heads inside the last axis, what broadcasts, and blocks that are computed one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import EllipsisType
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

import qkv

Index: TypeAlias = tuple[int | slice | EllipsisType, ...]

#: Elements of a block: 1 MB of doubles, so that what lies between two steps stays in a cache.
_BLOCK: Final = 1 << 17


def heads_last(name: str, array: NDArray[Any], attribute: str, num_heads: int | None) -> NDArray[Any]:
    """A view of [batch, length, heads, dim], of 4 axes (batch, heads, length, dim) or 3 with heads side by side."""
    if array.ndim == 4:
        if num_heads not in (None, array.shape[1]):
            raise qkv.ShapeError(
                f"{attribute} is {num_heads} but {name} has shape {array.shape}; leave it out for 4 axes"
            )
        return array.transpose(0, 2, 1, 3)
    if array.ndim != 3:
        raise qkv.ShapeError(
            f"{name} has shape {array.shape}; expected 4 axes (batch, heads, length, dim), or 3 and {attribute}"
        )
    if num_heads is None:
        raise qkv.ValueError(f"{name} has 3 axes; expected the attribute {attribute} with it")
    batch, length, width = array.shape
    if num_heads < 1 or width % num_heads:
        raise qkv.ShapeError(
            f"{name} has shape {array.shape}; expected a last axis that {attribute}, {num_heads}, divides"
        )
    return array.reshape(batch, length, num_heads, width // num_heads)


def broadcasts(shape: tuple[int, ...], onto: tuple[int, ...]) -> bool:
    """Whether one shape broadcasts to the other, which it may not make larger."""
    pairs = zip(shape[::-1], onto[::-1], strict=False)
    return len(shape) <= len(onto) and all(extent in (1, wanted) for extent, wanted in pairs)


def blocks(shape: tuple[int, ...], whole: int = 0) -> Iterator[Index]:
    """Indices of blocks that together are an array; none cuts the last ``whole`` axes, however long they are."""
    cut = len(shape) - whole
    size = math.prod(shape[cut:])
    while cut > 0 and size * shape[cut - 1] <= _BLOCK:
        cut -= 1
        size *= shape[cut]
    if cut == 0:
        yield (...,)
        return
    step = max(1, _BLOCK // size)
    for outer in np.ndindex(shape[: cut - 1]):
        for begin in range(0, shape[cut - 1], step):
            yield (*outer, slice(begin, begin + step), ...)
