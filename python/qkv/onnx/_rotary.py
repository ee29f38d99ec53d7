"""RotaryEmbedding: pairs of columns are turned by the angles whose cosines and sines are given."""

from __future__ import annotations

import numpy as np

from qkv.onnx._operator import BFLOAT16, FLOAT16, FLOAT32, Array, Call, of_type, rounded


def rotary_embedding(call: Call) -> dict[str, Array]:
    """``(x1, x2) -> (cos * x1 - sin * x2, sin * x1 + cos * x2)``, computed in double and rounded once."""
    given = call.floats("X", (FLOAT32, FLOAT16, BFLOAT16))
    y = given.copy(order="C")
    x, turned = _heads_last(call, given), _heads_last(call, y)
    size = _rotary_dim(call, x.shape[3])
    cos, sin = (_angles(call, name, x, size // 2) for name in ("cos_cache", "sin_cache"))
    first, second = _halves(call, size)
    x1, x2 = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # Inf and NaN follow the formula
        turned[..., first] = rounded(cos * x1 - sin * x2, y.dtype)
        turned[..., second] = rounded(sin * x1 + cos * x2, y.dtype)
    return {"Y": y}


def _heads_last(call: Call, x: Array) -> Array:
    """A view of [batch, length, heads, dim]."""
    num_heads = call.attributes["num_heads"]
    if x.ndim == 4:
        if num_heads not in (None, x.shape[1]):
            raise ValueError(f"num_heads is {num_heads} but X has shape {x.shape}; leave it out for 4 axes")
        return x.transpose(0, 2, 1, 3)
    if x.ndim != 3:
        raise ValueError(f"X has shape {x.shape}; expected 4 axes (batch, heads, length, dim), or 3 and num_heads")
    if num_heads is None:
        raise ValueError("X has 3 axes; expected the attribute num_heads with it")
    batch, length, width = x.shape
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"X has shape {x.shape}; expected a last axis that num_heads, {num_heads}, divides")
    return x.reshape(batch, length, num_heads, width // num_heads)


def _rotary_dim(call: Call, head_size: int) -> int:
    size: int = call.attributes["rotary_embedding_dim"] or head_size
    if not 0 <= size <= head_size or size % 2:
        name = "rotary_embedding_dim" if call.attributes["rotary_embedding_dim"] else "the head size"
        raise ValueError(f"{name} is {size}; expected an even number up to the head size, {head_size}")
    return size


def _halves(call: Call, size: int) -> tuple[slice, slice]:
    if call.flag("interleaved"):
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


def _angles(call: Call, name: str, x: Array, pairs: int) -> Array:
    """[batch, length, 1, pairs] in double: the rows that position_ids name, or one row a position as they stand."""
    cache = of_type(name, call.inputs[name], (x.dtype,))
    batch, length = x.shape[:2]
    positions = call.int64s("position_ids", (batch, length))
    if positions is None:
        if cache.shape != (batch, length, pairs):
            raise ValueError(f"{name} has shape {cache.shape}; expected ({batch}, {length}, {pairs})")
        return cache[:, :, None].astype(np.float64)
    if cache.ndim != 2 or cache.shape[1] != pairs:
        raise ValueError(f"{name} has shape {cache.shape}; expected (positions, {pairs}) beside position_ids")
    if positions.size and not 0 <= positions.min() <= positions.max() < cache.shape[0]:
        raise ValueError(
            f"position_ids go from {positions.min()} to {positions.max()}; expected rows of {name}, 0 to "
            f"{cache.shape[0] - 1}"
        )
    return cache[positions][:, :, None].astype(np.float64)
