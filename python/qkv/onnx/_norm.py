"""RMSNormalization: every row divided by the root of its mean square."""

from __future__ import annotations

import numpy as np

from qkv.onnx._operator import PRECISIONS, Array, Call, rounded


def rms_normalization(call: Call) -> dict[str, Array]:
    """``Y = X / sqrt(mean(X * X) + epsilon) * scale``, computed in double and rounded once, to the type of scale.

    The specification rounds in between, to the type of X; that is the less exact of the two. Double is at least as
    precise as every stash_type.
    """
    x, scale = call.floats("X"), call.floats("scale")
    stash = call.attributes["stash_type"]
    if stash not in PRECISIONS:
        raise ValueError(f"stash_type is {stash}; expected 1, 10, 11 or 16")
    axis = call.attributes["axis"]
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis is {axis}; expected one of X's, {-x.ndim} to {x.ndim - 1} (X has shape {x.shape})")
    _check_scale(x, scale)
    if x.size == 0:
        return {"Y": np.empty(x.shape, scale.dtype)}
    wide = x.astype(np.float64)
    axes = tuple(range(axis % x.ndim, x.ndim))
    with np.errstate(all="ignore"):  # Inf and NaN follow the formula
        root = np.sqrt(np.mean(wide * wide, axis=axes, keepdims=True) + call.attributes["epsilon"])
        return {"Y": rounded(wide / root * scale.astype(np.float64), scale.dtype)}


def _check_scale(x: Array, scale: Array) -> None:
    """Broadcasting goes one way: scale may not make X larger."""
    fits = scale.ndim <= x.ndim and all(
        extent in (1, wanted) for extent, wanted in zip(scale.shape[::-1], x.shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"scale has shape {scale.shape}; expected one that broadcasts to that of X, {x.shape}")
