"""Where decoding keeps keys and values."""

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


def make(shape: Shape, dtype: str) -> CacheStore:
    """An empty cache."""
    return CacheStore(shape, dtype)
