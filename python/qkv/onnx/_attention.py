"""Attention of ONNX in terms of qkv.attention.

What differs is how a call is said, not what is computed: heads may lie inside the last axis, the cache of earlier keys
is an input and an output, and the position of the first query follows from which cache there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

import qkv
from qkv.onnx._layout import broadcasts, heads_last
from qkv.onnx._operator import FLOAT32, FLOAT64, PRECISIONS, Array, Call, of_type, rounded

# What qk_matmul_output shows, by qk_matmul_output_mode. The stages are those of the specification's text and of its
# function body: 0 is the product alone, before the soft cap.
_STAGES: Final[dict[int, dict[str, Any]]] = {
    0: {"return_logits": "scaled"},
    1: {"return_logits": "capped"},
    2: {"return_logits": "masked"},
    3: {"return_weights": True},
}

#: ONNX's names of what qkv.attention may still refuse.
_NAMES: Final = {"q": "Q", "k": "K", "v": "V", "mask": "attn_mask", "bias": "attn_mask"}

#: Q, K, V and the float mask.
Operands: TypeAlias = tuple[Array, Array, Array, Array | None]


def attention(call: Call) -> dict[str, Array]:
    """``Y = softmax(softcap(scale * Q @ K.T) + masks) @ V``, after what earlier calls have cached."""
    _check_types(call)
    q, k, v = _heads_first(call)
    new_len = k.shape[2]
    if _has_past(call):
        k = _joined("past_key", call.inputs["past_key"], k)
        v = _joined("past_value", call.inputs["past_value"], v)
    _check_shapes(q, k, v)
    positions = _positions(call, q, k, k.shape[2] - new_len)  # first: masks are as long as its lengths
    mask, bias = _masks(call, q, k)
    options = {
        "scale": call.attributes["scale"],
        "softcap": call.attributes["softcap"],
        "causal": call.flag("is_causal"),
        "window": _window(call),
        "mask": mask,
        **positions,
        **_shown(call),
    }
    results = _attend(call, _widened(call, q, k, v, bias), options)
    results.update(_present(call, k, v))
    return results


def _shown(call: Call) -> dict[str, Any]:
    """What to ask for beside Y."""
    mode = call.attributes["qk_matmul_output_mode"]
    if mode not in _STAGES:
        raise qkv.ValueError(f"qk_matmul_output_mode is {mode}; expected 0, 1, 2 or 3")
    return _STAGES[mode] if "qk_matmul_output" in call.wanted else {}


def _attend(call: Call, operands: Operands, options: Mapping[str, Any]) -> dict[str, Array]:
    """Y and qk_matmul_output, each rounded once to the type of Q."""
    q, k, v, bias = operands
    y, out = _empty(call, q, v)
    try:
        result: Any = qkv.attention(q, k, v, bias=bias, out=out, **options)
    except qkv.Error as error:
        name, colon, rest = str(error).partition(":")
        raise type(error)(_NAMES.get(name, name) + colon + rest) from error
    dtype = call.inputs["Q"].dtype
    results = {"Y": rounded(y, dtype)}
    if "qk_matmul_output" in call.wanted:
        results["qk_matmul_output"] = rounded(result[1], dtype)
    return results


def _empty(call: Call, q: Array, v: Array) -> tuple[Array, Array]:
    """Y in its own layout, and the same memory as [batch, heads, length, dim]: written in place, never transposed."""
    batch, num_heads, q_len, _ = q.shape
    value_dim = v.shape[3]
    if call.inputs["Q"].ndim == 4:
        y: Array = np.empty((batch, num_heads, q_len, value_dim), q.dtype)
        return y, y
    y = np.empty((batch, q_len, num_heads * value_dim), q.dtype)
    return y, y.reshape(batch, q_len, num_heads, value_dim).transpose(0, 2, 1, 3)


def _check_types(call: Call) -> None:
    """Q and K are of one type, V of one of its own; what is cached or added is as what it joins."""
    q, v = call.floats("Q"), call.floats("V")
    for name, like in (("K", q), ("past_key", q), ("past_value", v)):
        if name in call.inputs:
            of_type(name, call.inputs[name], (like.dtype,))
    if "attn_mask" in call.inputs:
        of_type("attn_mask", call.inputs["attn_mask"], (np.dtype(np.bool_), q.dtype))
    precision = call.attributes["softmax_precision"]
    if precision is not None and precision not in PRECISIONS:
        raise qkv.ValueError(f"softmax_precision is {precision}; expected 1, 10, 11 or 16")


def _heads_first(call: Call) -> tuple[Array, Array, Array]:
    """Q, K and V as views of [batch, heads, length, dim]."""
    arrays = {name: call.inputs[name] for name in ("Q", "K", "V")}
    ranks = {array.ndim for array in arrays.values()}
    if ranks not in ({3}, {4}):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise qkv.ShapeError(f"{shapes}; expected all of them with 4 axes, or all with 3")
    heads = {"Q": "q_num_heads", "K": "kv_num_heads", "V": "kv_num_heads"}
    q, k, v = (heads_last(name, array, heads[name], call.attributes[heads[name]]) for name, array in arrays.items())
    return q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)


def _has_past(call: Call) -> bool:
    given = [name for name in ("past_key", "past_value") if name in call.inputs]
    if len(given) == 1:
        raise qkv.ValueError(f"{given[0]} is there alone; expected past_key and past_value, or neither")
    return bool(given)


def _joined(name: str, past: Array, new: Array) -> Array:
    """The cache, then what is new."""
    batch, num_heads, _, dim = new.shape
    if past.ndim != 4 or (past.shape[0], past.shape[1], past.shape[3]) != (batch, num_heads, dim):
        raise qkv.ShapeError(f"{name} has shape {past.shape}; expected ({batch}, {num_heads}, past length, {dim})")
    return np.concatenate((past, new), axis=2)


def _check_shapes(q: Array, k: Array, v: Array) -> None:
    """In ONNX's words and order of axes; qkv would name its own arguments."""
    seen = f"Q {q.shape}, K {k.shape}, V {v.shape} (batch, heads, length, dim)"
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise qkv.ShapeError(f"{seen}; expected equal batch sizes")
    if k.shape[1:3] != v.shape[1:3]:
        raise qkv.ShapeError(f"{seen}; expected as many heads and positions in V as in K")
    if k.shape[1] == 0 or q.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise qkv.ShapeError(f"{seen}; expected a number of query heads that the number of key heads divides")
    if q.shape[3] == 0:
        raise qkv.ShapeError(f"{seen}; expected a head size of at least 1 in Q and K")
    if q.shape[3] != k.shape[3]:
        raise qkv.ShapeError(f"{seen}; expected equal head sizes in Q and K")


def _positions(call: Call, q: Array, k: Array, past_len: int) -> dict[str, Any]:
    """Where the first query stands, and how many keys there are: both by sequence, where lengths are given."""
    lengths = call.int64s("nonpad_kv_seqlen", (q.shape[0],))
    if lengths is None:
        return {"query_offset": past_len}
    clash = sorted({"past_key", "past_value"} & call.inputs.keys() | {"present_key", "present_value"} & call.wanted)
    if clash:
        raise qkv.ValueError(f"nonpad_kv_seqlen beside {' and '.join(clash)}; expected one way to keep a cache")
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= k.shape[2]:
        raise qkv.ValueError(f"nonpad_kv_seqlen is {lengths.tolist()}; expected lengths from 0 to {k.shape[2]}")
    return {"query_offset": lengths - q.shape[2], "kv_lens": lengths}


def _window(call: Call) -> tuple[int | None, int | None]:
    sides = []
    for name in ("left_window_size", "right_window_size"):
        size = call.attributes.get(name, -1)
        if size < -1:
            raise qkv.ValueError(f"{name} is {size}; expected -1 (no bound) or a number of positions from 0")
        sides.append(None if size == -1 else size)
    return sides[0], sides[1]


def _masks(call: Call, q: Array, k: Array) -> tuple[Array | None, Array | None]:
    """The mask and the bias that it is."""
    given = call.inputs.get("attn_mask")
    if given is None:
        return None, None
    total = k.shape[2]
    mask = _padded(call, given, total)
    onto = (*q.shape[:3], total)
    if not broadcasts(mask.shape, onto):
        raise qkv.ShapeError(f"attn_mask has shape {given.shape}; expected one that broadcasts to {onto}")
    return (mask, None) if mask.dtype == np.bool_ else (None, mask)


def _padded(call: Call, mask: Array, total: int) -> Array:
    """A mask that is short hides what it does not reach, from opset 24 on: one column too, which 23 broadcasts."""
    if call.opset < 24 or mask.ndim == 0 or mask.shape[-1] >= total:
        return mask
    lengths = call.inputs.get("nonpad_kv_seqlen")
    if lengths is not None and lengths.size and mask.shape[-1] < lengths.max():
        raise qkv.ShapeError(
            f"attn_mask has shape {mask.shape}; expected a last axis no shorter than the longest of nonpad_kv_seqlen, "
            f"{lengths.max()}"
        )
    hidden = False if mask.dtype == np.bool_ else mask.dtype.type(-np.inf)
    tail = np.full((*mask.shape[:-1], total - mask.shape[-1]), hidden, mask.dtype)
    return np.concatenate((mask, tail), axis=-1)


def _widened(call: Call, q: Array, k: Array, v: Array, bias: Array | None) -> Operands:
    """In types that one call takes, widened where V or the softmax is to be more precise than Q; nothing is rounded.

    16 bits are computed in float32 anyway, so a softmax_precision of less than 64 bits asks for nothing more.
    """
    # To NumPy None is another word for float64, so a precision that is not given must not be compared.
    precision = PRECISIONS.get(call.attributes["softmax_precision"], q.dtype)
    wide: np.dtype[Any]
    if FLOAT64 in (q.dtype, v.dtype, precision):
        wide = FLOAT64
        v = v.astype(wide, copy=False)
    elif v.dtype == FLOAT32:
        wide = FLOAT32
    else:
        return q, k, v, bias
    if bias is not None:
        bias = bias.astype(wide, copy=False)
    return q.astype(wide, copy=False), k.astype(wide, copy=False), v, bias


def _present(call: Call, k: Array, v: Array) -> dict[str, Array]:
    """The caches for the next call. Without a past they are new keys and values alone, and copies: nobody else's."""
    present = {"present_key": k, "present_value": v}
    fresh = "past_key" not in call.inputs
    return {name: np.array(x, order="C") if fresh else x for name, x in present.items() if name in call.wanted}
