"""RMSNormalization: every row divided by the root of its mean square."""

from __future__ import annotations

import numpy as np

import qkv
from qkv.onnx._layout import blocks, broadcasts
from qkv.onnx._operator import PRECISIONS, Array, Call, rounded


def rms_normalization(call: Call) -> dict[str, Array]:
    """``Y = X / sqrt(mean(X * X) + epsilon) * scale``, computed in double and rounded once, to the type of scale.

    The specification rounds in between, to the type of X; that is the less exact of the two. Double is at least as
    precise as every stash_type.
    """
    x, scale = call.floats("X"), call.floats("scale")
    stash = call.attributes["stash_type"]
    if stash not in PRECISIONS:
        raise qkv.ValueError(f"stash_type is {stash}; expected 1, 10, 11 or 16")
    axis = call.attributes["axis"]
    if not -x.ndim <= axis < x.ndim:
        raise qkv.ValueError(f"axis is {axis}; expected one of X's, {-x.ndim} to {x.ndim - 1} (X has shape {x.shape})")
    if not broadcasts(scale.shape, x.shape):
        raise qkv.ShapeError(f"scale has shape {scale.shape}; expected one that broadcasts to that of X, {x.shape}")
    y = np.empty(x.shape, scale.dtype)
    if x.size == 0:
        return {"Y": y}
    whole = x.ndim - axis % x.ndim
    scales = np.broadcast_to(scale, x.shape)
    for index in blocks(x.shape, whole):
        y[index] = rounded(_normed(x[index], scales[index], whole, call.attributes["epsilon"]), y.dtype)
    return {"Y": y}


def _normed(x: Array, scale: Array, whole: int, epsilon: float) -> Array:
    """In double, of a block."""
    axes = tuple(range(-whole, 0))
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):  # Inf and NaN follow the formula
        wide /= np.sqrt(np.mean(wide * wide, axis=axes, keepdims=True) + epsilon)
        wide *= scale.astype(np.float64)
    return wide
