"""RotaryEmbedding: pairs of columns are turned by the angles whose cosines and sines are given."""

from __future__ import annotations

import numpy as np

import qkv
from qkv.onnx._layout import Index, blocks, heads_last
from qkv.onnx._operator import BFLOAT16, FLOAT16, FLOAT32, Array, Call, of_type, rounded


def rotary_embedding(call: Call) -> dict[str, Array]:
    """``(x1, x2) -> (cos * x1 - sin * x2, sin * x1 + cos * x2)``, computed in double and rounded once."""
    given = call.floats("X", (FLOAT32, FLOAT16, BFLOAT16))
    y = given.copy(order="C")
    num_heads = call.attributes["num_heads"]
    x, turned = heads_last("X", given, "num_heads", num_heads), heads_last("X", y, "num_heads", num_heads)
    size = _rotary_dim(call, x.shape[3])
    angles = _Angles(call, x, size // 2)
    first, second = _halves(call, size)
    for index in blocks(x.shape, whole=2):
        cos, sin = angles.at(index)
        x1, x2 = (x[index][..., half].astype(np.float64) for half in (first, second))
        with np.errstate(invalid="ignore", over="ignore"):  # Inf and NaN follow the formula
            turned[index][..., first] = rounded(cos * x1 - sin * x2, y.dtype)
            turned[index][..., second] = rounded(sin * x1 + cos * x2, y.dtype)
    return {"Y": y}


def _rotary_dim(call: Call, head_size: int) -> int:
    size: int = call.attributes["rotary_embedding_dim"] or head_size
    if not 0 <= size <= head_size or size % 2:
        name = "rotary_embedding_dim" if call.attributes["rotary_embedding_dim"] else "the head size"
        raise qkv.ValueError(f"{name} is {size}; expected an even number up to the head size, {head_size}")
    return size


def _halves(call: Call, size: int) -> tuple[slice, slice]:
    if call.flag("interleaved"):
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


class _Angles:
    """Cosines and sines: the rows that position_ids name, or one row a position as they stand."""

    def __init__(self, call: Call, x: Array, pairs: int) -> None:
        batch, length = x.shape[:2]
        self._positions = call.int64s("position_ids", (batch, length))
        caches = {name: of_type(name, call.inputs[name], (x.dtype,)) for name in ("cos_cache", "sin_cache")}
        self._caches = tuple(caches.values())
        for name, cache in caches.items():
            if self._positions is None:
                if cache.shape != (batch, length, pairs):
                    raise qkv.ShapeError(f"{name} has shape {cache.shape}; expected ({batch}, {length}, {pairs})")
            elif cache.ndim != 2 or cache.shape[1] != pairs:
                raise qkv.ShapeError(
                    f"{name} has shape {cache.shape}; expected (positions, {pairs}) beside position_ids"
                )
        if self._positions is not None and self._positions.size:
            _check_positions(self._positions, min(len(cache) for cache in self._caches))

    def at(self, index: Index) -> tuple[Array, Array]:
        """Of a block of [batch, length, heads, dim]: [..., 1, pairs] in double."""
        rows = index if self._positions is None else self._positions[index]
        cos, sin = (cache[rows][..., None, :].astype(np.float64) for cache in self._caches)
        return cos, sin


def _check_positions(positions: Array, rows: int) -> None:
    low, high = positions.min(), positions.max()
    if low < 0 or high >= rows:
        raise qkv.ValueError(
            f"position_ids go from {low} to {high}; expected rows of cos_cache and sin_cache, 0 to {rows - 1}"
        )
