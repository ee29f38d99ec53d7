"""qkv.onnx: what an operator refuses; the text names the node, what was seen and what was expected."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support import ones, optional

import qkv

onnx: Any = optional("onnx")
if onnx:
    from onnx import helper
    from onnx_models import attention_model

    import qkv.onnx

pytestmark = pytest.mark.needs("onnx")


def unaligned(*shape: int) -> np.ndarray:
    array = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)[1:].view(np.float32)
    return array.reshape(shape)


def seen(*shape: int) -> np.ndarray:
    return np.ones(shape, bool)


def lengths(*numbers: int) -> dict[str, np.ndarray]:
    return {"nonpad_kv_seqlen": np.array(numbers)}


def base() -> dict[str, np.ndarray]:
    return {"Q": ones(2, 4, 3, 8), "K": ones(2, 2, 5, 8), "V": ones(2, 2, 5, 6)}


def past(key: tuple[int, ...] = (2, 2, 3, 8), value: tuple[int, ...] = (2, 2, 3, 6)) -> dict[str, np.ndarray]:
    return {"past_key": np.ones(key, np.float32), "past_value": np.ones(value, np.float32)}


PACKED = {name: ones(2, 3, 12) for name in "QKV"}

# Changes of the inputs (None = left out), attributes, and the error.
ATTENTION_VALUES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "heads": ({"Q": ones(2, 3, 3, 8)}, {}, "number of query heads that the number of key heads"),
    "no heads": ({"K": ones(2, 0, 5, 8), "V": ones(2, 0, 5, 6)}, {}, "query heads"),
    "no columns": ({"Q": ones(2, 4, 3, 0), "K": ones(2, 2, 5, 0)}, {}, "expected a head size of at least 1 in Q and K"),
    "unaligned": ({"Q": unaligned(2, 4, 3, 8)}, {}, "Q: the data pointer is not aligned to the 4 bytes of float32"),
    "unaligned mask": ({"attn_mask": unaligned(3, 5)}, {}, "attn_mask: the data pointer is not aligned"),
    "head size": ({"K": ones(2, 2, 5, 4)}, {}, "equal head sizes in Q and K"),
    "batch": ({"K": ones(1, 2, 5, 8), "V": ones(1, 2, 5, 6)}, {}, "equal batch sizes"),
    "V": ({"V": ones(2, 2, 4, 6)}, {}, "as many heads and positions in V as in K"),
    "rank": ({"Q": ones(4, 3, 8)}, {}, r"Q (4, 3, 8), K (2, 2, 5, 8), V (2, 2, 5, 6); expected all"),
    "rank 2": ({name: ones(3, 8) for name in "QKV"}, {}, "expected all of them with 4 axes"),
    "packed": (PACKED, {"kv_num_heads": 2}, "Q has 3 axes; expected the attribute q_num_heads"),
    "packed width": (PACKED, {"q_num_heads": 5, "kv_num_heads": 2}, "Q has shape (2, 3, 12); expected a last"),
    "packed none": (PACKED, {"q_num_heads": 0, "kv_num_heads": 2}, "that q_num_heads, 0, divides"),
    "heads twice": ({}, {"kv_num_heads": 4}, "kv_num_heads is 4 but K has shape (2, 2, 5, 8)"),
    "mask shape": ({"attn_mask": seen(3, 6)}, {}, "attn_mask has shape (3, 6); expected one that"),
    "mask rank": ({"attn_mask": seen(1, 1, 1, 3, 5)}, {}, "broadcasts to (2, 4, 3, 5)"),
    "mask short": (
        {"attn_mask": seen(3, 3), **lengths(4, 2)},
        {},
        "no shorter than the longest of nonpad_kv_seqlen, 4",
    ),
    "mask and lengths": ({"attn_mask": seen(3, 3), **lengths(5, 6)}, {}, "nonpad_kv_seqlen is [5, 6]; expected"),
    "mask of 23": ({"attn_mask": seen(3, 4)}, {"opset": 23}, "attn_mask has shape (3, 4)"),
    "past alone": ({"past_key": ones(2, 2, 3, 8)}, {}, "past_key is there alone"),
    "past key": (past(key=(2, 2, 3, 7)), {}, "past_key has shape (2, 2, 3, 7); expected (2, 2, past length, 8)"),
    "past rank": (past(value=(2, 3, 6)), {}, "past_value has shape (2, 3, 6); expected (2, 2, past length, 6)"),
    "past axes": (past(key=(2, 2)), {}, "past_key has shape (2, 2); expected (2, 2, past length, 8)"),
    "past lengths": (past(value=(2, 2, 4, 6)), {}, "as many heads and positions in V as in K"),
    "two caches": ({**past(), **lengths(5, 5)}, {}, "nonpad_kv_seqlen beside past_key and"),
    "lengths": ({**lengths(5, 6)}, {}, "nonpad_kv_seqlen is [5, 6]; expected lengths from 0 to 5"),
    "length below 0": ({**lengths(-1, 5)}, {}, "is [-1, 5]; expected lengths from 0"),
    "lengths' shape": ({**lengths(5)}, {}, "nonpad_kv_seqlen has shape (1,); expected (2,)"),
    "causal": ({}, {"is_causal": 2}, "is_causal is 2; expected 0 or 1"),
    "mode": ({}, {"qk_matmul_output_mode": 4}, "qk_matmul_output_mode is 4; expected 0, 1, 2 or 3"),
    "precision": ({}, {"softmax_precision": 7}, "softmax_precision is 7; expected 1, 10, 11 or 16"),
    "window": ({}, {"right_window_size": -2}, "right_window_size is -2; expected -1 (no bound)"),
    "scale": ({}, {"scale": float("nan")}, "scale: expected a finite number, got nan"),
    "softcap": ({}, {"softcap": -1.0}, "softcap"),
    "attribute": ({}, {"dropout": 0.5}, "the attribute dropout is not known to Attention-25; has is_causal, kv"),
    "attribute's type": ({}, {"scale": 1}, "the attribute scale is of type INT; expected float"),
    "window of 24": ({}, {"left_window_size": 1, "opset": 24}, "left_window_size is not known to Attention-24"),
    "lengths of 23": ({**lengths(5, 5)}, {"opset": 23}, "7 inputs; expected at most 6"),
    "missing": ({"K": None}, {}, "the input K is missing; expected Q, K, V"),
}
ATTENTION_TYPES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "K type": ({"K": ones(2, 2, 5, 8, dtype=float)}, {}, "K is float64; expected float32"),
    "Q type": ({name: ones(2, 2, 5, 8, dtype=np.int32) for name in "QK"}, {}, "Q is int32; expected float32 or"),
    "V type": ({"V": ones(2, 2, 5, 6, dtype=np.int64)}, {}, "V is int64; expected float32 or"),
    "mask type": ({"attn_mask": ones(3, 5, dtype=np.int64)}, {}, "attn_mask is int64; expected bool or float32"),
    "mask float": ({"attn_mask": ones(3, 5, dtype=float)}, {}, "attn_mask is float64; expected bool or float32"),
    "past type": (
        {**past(), "past_value": ones(2, 2, 3, 6, dtype=float)},
        {},
        "past_value is float64; expected float32",
    ),
    "lengths' type": ({"nonpad_kv_seqlen": np.array([5, 5], np.int32)}, {}, "is int32; expected int64"),
}


#: Which of them are about shapes.
SHAPES = """
heads, no heads, no columns, head size, batch, V, rank, rank 2, packed width, packed none, heads twice, mask shape,
mask rank, mask short, mask of 23, past key, past rank, past axes, past lengths, lengths' shape, x rank, x width,
x twice, interleaved, sin, scale of X, larger, longer, other, starts' shape
"""


def kind_of(case: str) -> type[Exception]:
    return qkv.ShapeError if case in SHAPES.strip().replace("\n", " ").split(", ") else qkv.ValueError


@pytest.mark.parametrize("case", [*ATTENTION_VALUES, *ATTENTION_TYPES])
def test_attention(case: str) -> None:
    error = kind_of(case) if case in ATTENTION_VALUES else qkv.DtypeError
    changes, options, text = {**ATTENTION_VALUES, **ATTENTION_TYPES}[case]
    inputs = {name: x for name, x in {**base(), **changes}.items() if x is not None}
    with pytest.raises(error, match=re.escape(text)) as caught:
        qkv.onnx.run(attention_model(inputs, **options), inputs)
    assert str(caught.value).startswith("node 'attend' (Attention): ")


def test_lengths_beside_a_present() -> None:
    inputs = {**base(), **lengths(5, 5)}
    with pytest.raises(ValueError, match="nonpad_kv_seqlen beside present_key; expected one way"):
        qkv.onnx.run(attention_model(inputs, ("Y", "present_key")), inputs)


X = ones(2, 3, 5, 8)
COS = ones(7, 4)
POSITIONS = np.zeros((2, 5), np.int64)
PAST = ones(2, 6, 4)
UPDATE = ones(2, 3, 4)

# Operator, inputs, attributes, and the error.
SMALL_VALUES: dict[str, tuple[str, list[np.ndarray], dict[str, Any], str]] = {
    "x rank": ("RotaryEmbedding", [X[0, 0], COS, COS], {}, "X has shape (5, 8); expected 4 axes"),
    "x heads": ("RotaryEmbedding", [X[0], COS, COS], {}, "X has 3 axes; expected the attribute num_heads"),
    "x width": ("RotaryEmbedding", [X[0], COS, COS], {"num_heads": 3}, "last axis that num_heads, 3, divides"),
    "x twice": ("RotaryEmbedding", [X, COS, COS], {"num_heads": 2}, "num_heads is 2 but X has shape"),
    "odd": ("RotaryEmbedding", [X[..., :7], COS, COS], {}, "the head size is 7; expected an even number"),
    "too wide": ("RotaryEmbedding", [X, COS, COS], {"rotary_embedding_dim": 10}, "rotary_embedding_dim is 10"),
    "interleaved": ("RotaryEmbedding", [X, COS[None], COS], {"interleaved": 3}, "cos_cache has shape (1, 7, 4)"),
    "flag": ("RotaryEmbedding", [X, COS, COS, POSITIONS], {"interleaved": 3}, "interleaved is 3; expected 0 or 1"),
    "sin": ("RotaryEmbedding", [X, COS, COS[:, :3], POSITIONS], {}, "sin_cache has shape (7, 3); expected (pos"),
    "positions": ("RotaryEmbedding", [X, COS, COS, POSITIONS + 7], {}, "position_ids go from 7 to 7; expected rows"),
    "negative": ("RotaryEmbedding", [X, COS, COS, POSITIONS - 1], {}, "position_ids go from -1 to -1"),
    "axis": ("RMSNormalization", [X, COS[0]], {"axis": 4}, "axis is 4; expected one of X's, -4 to 3"),
    "scale of X": ("RMSNormalization", [X, COS], {}, "scale has shape (7, 4); expected one that broadcasts"),
    "larger": ("RMSNormalization", [COS, X], {}, "scale has shape (2, 3, 5, 8); expected one"),
    "stash": ("RMSNormalization", [COS, COS], {"stash_type": 7}, "stash_type is 7; expected 1, 10, 11 or 16"),
    "batch axis": ("TensorScatter", [PAST, UPDATE], {"axis": -3}, "axis is -3; expected one of past_cache's"),
    "no axis": ("TensorScatter", [PAST, UPDATE], {"axis": 3}, "axis is 3; expected one of past_cache's"),
    "longer": ("TensorScatter", [UPDATE, PAST], {}, "update has shape (2, 6, 4); expected that of past_cache"),
    "other": ("TensorScatter", [PAST, UPDATE[..., :3]], {}, "update has shape (2, 3, 3); expected that of"),
    "mode": ("TensorScatter", [PAST, UPDATE], {"mode": "ring"}, "mode is 'ring'; expected 'linear' or 'circular'"),
    "starts": ("TensorScatter", [PAST, UPDATE, np.array([0, 4])], {}, "write_indices are [0, 4]; expected from 0 to 3"),
    "starts below 0": ("TensorScatter", [PAST, UPDATE, np.array([-1, 0])], {}, "write_indices are [-1, 0]"),
    "starts' shape": (
        "TensorScatter",
        [PAST, UPDATE, np.array([0])],
        {},
        "write_indices has shape (1,); expected (2,)",
    ),
}
SMALL_TYPES: dict[str, tuple[str, list[np.ndarray], dict[str, Any], str]] = {
    "x type": ("RotaryEmbedding", [X.astype(float), COS, COS], {}, "X is float64; expected float32 or float16"),
    "cos type": ("RotaryEmbedding", [X, COS.astype(float), COS, POSITIONS], {}, "cos_cache is float64"),
    "norm type": ("RMSNormalization", [POSITIONS, COS], {}, "X is int64; expected float32 or"),
    "scatter type": ("TensorScatter", [PAST, UPDATE.astype(float)], {}, "update is float64; expected float32"),
}


@pytest.mark.parametrize("case", [*SMALL_VALUES, *SMALL_TYPES])
def test_small_operators(case: str) -> None:
    error = kind_of(case) if case in SMALL_VALUES else qkv.DtypeError
    operator, arrays, attributes, text = {**SMALL_VALUES, **SMALL_TYPES}[case]
    names = [f"i{index}" for index in range(len(arrays))]
    node = helper.make_node(operator, names, ["y"], **attributes)
    with pytest.raises(error, match=re.escape(text)) as caught:
        qkv.onnx.Backend.run_node(node, arrays)
    assert str(caught.value).startswith(f"node 0 ({operator}): ")
