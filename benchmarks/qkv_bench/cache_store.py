"""Where decoding keeps keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import qkv
from qkv_bench.cases import Array


@dataclass(frozen=True)
class Shape:
    """Of one sequence: capacity is in tokens."""

    kv_heads: int
    dim: int
    capacity: int


class CacheStore:
    """Keys and values of one sequence that grows, in a qkv.KVCache."""

    def __init__(self, shape: Shape, dtype: str) -> None:
        """Empty."""
        self._cache = qkv.KVCache(1, shape.kv_heads, shape.dim, shape.capacity, dtype=dtype)
        self.append = self._cache.append

    def attend(self, q: Array) -> Array:
        """The result for [1, heads, 1, dim], at the position of the last token."""
        out: Array = qkv.attention(q, self._cache)
        return out


def make(shape: Shape, dtype: str) -> CacheStore:
    """An empty cache."""
    return CacheStore(shape, dtype)
