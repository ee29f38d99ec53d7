"""TensorScatter: new keys or values written into a cache that keeps its size."""

from __future__ import annotations

import numpy as np

import qkv
from qkv.onnx._operator import Array, Call, of_type


def tensor_scatter(call: Call) -> dict[str, Array]:
    """A copy of the cache with ``update`` from each sequence's write index on; "circular" goes on at the front."""
    past, update = call.inputs["past_cache"], call.inputs["update"]
    of_type("update", update, (past.dtype,))
    axis = _axis(call, past)
    _check_update(past, update, axis)
    batch, size, length = past.shape[0], past.shape[axis], update.shape[axis]
    starts = call.int64s("write_indices", (batch,))
    if starts is None:
        starts = np.zeros(batch, np.int64)
    mode = call.attributes["mode"]
    if mode not in ("linear", "circular"):
        raise qkv.ValueError(f"mode is {mode!r}; expected 'linear' or 'circular'")
    if mode == "linear" and batch and not 0 <= starts.min() <= starts.max() <= size - length:
        raise qkv.ValueError(
            f"write_indices are {starts.tolist()}; expected from 0 to {size - length}, so that {length} positions fit "
            f"the cache's {size} in linear mode"
        )
    present = past.copy(order="C")
    rows, news = np.moveaxis(present, axis, 1), np.moveaxis(update, axis, 1)
    if mode == "circular" and size:
        starts = starts % size  # before anything is added, which near 2**63 would wrap around
    for index, start in enumerate(starts):
        where = start + np.arange(length)
        rows[index, where % size if mode == "circular" and size else where] = news[index]
    return {"present_cache": present}


def _axis(call: Call, past: Array) -> int:
    axis: int = call.attributes["axis"]
    if not -past.ndim <= axis < past.ndim or axis % past.ndim == 0:
        raise qkv.ValueError(
            f"axis is {axis}; expected one of past_cache's beyond the first, the batch (past_cache has shape "
            f"{past.shape})"
        )
    return axis % past.ndim


def _check_update(past: Array, update: Array, axis: int) -> None:
    wanted = list(past.shape)
    fits = update.ndim == past.ndim and update.shape[axis] <= past.shape[axis]
    if fits:
        wanted[axis] = update.shape[axis]
    if not fits or list(update.shape) != wanted:
        raise qkv.ShapeError(
            f"update has shape {update.shape}; expected that of past_cache, {past.shape}, but for axis {axis}, which "
            "may be shorter"
        )
