"""Where decoding keeps keys and values: the one module that knows how a cache is made, filled and attended to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import qkv
from qkv_bench.cases import Array
from qkv_bench.dtypes import INT8
from qkv_bench.runners import UnableError
from qkv_bench.storage import numpy_dtype


@dataclass(frozen=True)
class Shape:
    """Of one sequence: capacity is in tokens."""

    kv_heads: int
    dim: int
    capacity: int


class Store(Protocol):
    """Keys and values of one sequence that grows."""

    variant: str

    def append(self, k: Array, v: Array) -> None:
        """Takes in [1, kv_heads, tokens, dim]."""

    def attend(self, q: Array) -> Array:
        """The result for [1, heads, 1, dim], at the position of the last token."""


class CacheStore:
    """qkv.KVCache."""

    variant = "KVCache"

    def __init__(self, shape: Shape, dtype: str) -> None:
        """Empty."""
        library: Any = qkv  # whose types need not know of caches
        self._cache = library.KVCache(1, shape.kv_heads, shape.dim, shape.capacity, dtype=dtype)
        self._attend = library.attention
        self.append = self._cache.append

    def attend(self, q: Array) -> Array:
        """See Store."""
        out: Array = self._attend(q, self._cache)
        return out


class ArrayStore:
    """Plain arrays with room, as one does without a cache; they can not be int8."""

    variant = "arrays"

    def __init__(self, shape: Shape, dtype: str) -> None:
        """Empty. Raises UnableError for int8."""
        if dtype == INT8:
            raise UnableError("needs a cache: plain arrays are not int8")
        self._k, self._v = (
            np.zeros((1, shape.kv_heads, shape.capacity, shape.dim), numpy_dtype(dtype)) for _ in range(2)
        )
        self._length = 0

    def append(self, k: Array, v: Array) -> None:
        """See Store."""
        end = self._length + k.shape[2]
        self._k[:, :, self._length : end] = k
        self._v[:, :, self._length : end] = v
        self._length = end

    def attend(self, q: Array) -> Array:
        """See Store."""
        return qkv.attention(q, self._k[:, :, : self._length], self._v[:, :, : self._length])


def make(shape: Shape, dtype: str) -> Store:
    """A cache, or arrays with a version that has none. Raises UnableError."""
    return CacheStore(shape, dtype) if hasattr(qkv, "KVCache") else ArrayStore(shape, dtype)
