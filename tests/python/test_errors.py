"""Bad input: an exception of the right class whose text names the argument, what was seen and what to do."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, base, call

import qkv

F = np.float32
HUGE = 10**400  # no number of C; its digits fill a screen


SHAPES: list[tuple[dict[str, Any], str]] = [
    (
        {"q": np.ones((2, 5, 3, 8), F)},
        "k: num_kv_heads 2 in [2, 2, 5, 8] does not divide num_heads 5 of q [2, 5, 3, 8]",
    ),
    ({"q": np.ones((2, 4, 3, 7), F)}, "k: expected head_dim 7 as in q [2, 4, 3, 7], got 8 in [2, 2, 5, 8]"),
    ({"q": np.ones((3, 4, 3, 8), F)}, "k: expected batch 3"),
    ({"q": np.ones((2, 0, 3, 8), F)}, "q: num_heads is 0"),
    ({"k": np.ones((2, 0, 5, 8), F), "v": np.ones((2, 0, 5, 6), F)}, "k: num_kv_heads is 0"),
    ({"q": np.ones((2, 4, 3, 0), F), "k": np.ones((2, 2, 5, 0), F)}, "q: head_dim is 0"),
    ({"v": np.ones((2, 2, 4, 6), F)}, "v: expected kv_len 5"),
    ({"v": np.ones((2, 4, 5, 6), F)}, "v: expected num_kv_heads 2"),
    ({"q": np.array(1, F)}, "q: shape [], expected 1 to 4 axes"),
    ({"q": np.ones((1,) * 5, F)}, "q: shape [1, 1, 1, 1, 1], expected 1 to 4 axes"),
    ({"k": np.ones((1,) * 9, F)}, "k: 9 axes; at most 8 are supported"),
    ({"mask": np.ones((1,) * 12, bool)}, "mask: 12 axes; at most 8 are supported"),
    ({"mask": np.ones((3, 4), bool)}, "mask: [3, 4] does not broadcast to"),
    ({"mask": np.ones((3, 4, 3, 5), bool)}, "mask: [3, 4, 3, 5] does not broadcast to"),
    ({"mask": np.ones((1, 2, 4, 3, 5), bool)}, "mask"),
    ({"bias": np.ones((2, 3, 5), F)}, "bias: [2, 3, 5] does not broadcast to"),
    ({"sinks": np.ones(3, F)}, "sinks: expected [num_heads] = [4]"),
    ({"alibi_slopes": np.ones((4, 1), F)}, "alibi_slopes: expected [num_heads] = [4]"),
    ({"kv_lens": [1, 2, 3]}, "kv_lens: expected [batch] = [2], got [3]"),
    ({"kv_lens": np.array([[1], [2]])}, "kv_lens: expected 1 axis [batch], got 2 in [2, 1]"),
    ({"query_offset": np.array(1)}, "query_offset: expected 1 axis [batch], got 0 in []"),
    ({"query_offset": [1]}, "query_offset: expected [batch] = [2], got [1]"),
    ({"out": np.ones((2, 4, 3, 5), F)}, "out: expected [batch, num_heads, q_len, value_dim] = [2, 4, 3, 6]"),
]

DTYPES: list[tuple[dict[str, Any], str]] = [
    (
        {"q": np.ones((2, 4, 3, 8), np.int64)},
        "q: dtype int64 is not supported, expected float32, float64, float16 or bfloat16",
    ),
    (
        {"q": np.ones((2, 4, 3, 8), np.uint32)},
        "q: dtype uint32 is not supported, expected float32, float64, float16 or bfloat16",
    ),
    (
        {"q": np.ones((2, 4, 3, 8), bool)},
        "q: dtype bool is not supported, expected float32, float64, float16 or bfloat16",
    ),
    ({"q": np.ones((2, 4, 3, 8), np.complex64)}, "q: dtype complex64 is not supported"),
    ({"q": np.ones((2, 4, 3, 8), object)}, "q: dtype object is not supported"),
    (
        {"q": np.ones((2, 4, 3, 8), ">f4")},
        "q: dtype float32 with swapped bytes is not supported, expected float32, float64, float16 or bfloat16; "
        "convert it with .astype(numpy.float32)",
    ),
    ({"q": np.zeros((2, 4, 3, 8), [("x", "<f4")])}, "q: dtype void32 is not supported"),
    ({"q": np.zeros((2, 4, 3, 8), "M8[s]")}, "q: dtype datetime64[s] is not supported"),
    ({"q": np.ones((2, 4, 3, 8), np.longdouble)}, "q: dtype float128 is not supported"),
    (
        {"k": np.ones((2, 2, 5, 8), np.float64)},
        "k: expected float32, float16 or bfloat16 beside a q of float32, got float64",
    ),
    (
        {"v": np.ones((2, 2, 5, 6), np.int8)},
        "v: expected float32, float16 or bfloat16 beside a q of float32, got int8; int8 keys and "
        "values live in a cache",
    ),
    (
        {"q": np.ones((2, 4, 3, 8), np.float16)},
        "k: expected float16 or bfloat16 beside a q of float16, got float32",
    ),
    ({"out": np.ones((2, 4, 3, 6), np.float16)}, "out: expected float32 as in q, got float16"),
    ({"mask": np.ones((3, 5), F)}, "mask: expected bool (true = attend), got float32"),
    ({"mask": np.ones((3, 5), np.int64)}, "mask: expected bool (true = attend), got int64; use mask != 0"),
    ({"mask": np.ones((3, 5), np.uint8)}, "mask: expected bool (true = attend), got uint8; use mask != 0"),
    ({"mask": np.ones((3, 5), np.uint64)}, "mask: dtype uint64 is not supported, expected bool"),
    ({"bias": np.ones((3, 5), np.float64)}, "bias: expected float32, got float64"),
    ({"bias": np.ones((3, 5), bool)}, "bias: expected float32, got bool"),
    ({"sinks": np.ones(4, np.int32)}, "sinks: expected float32, got int32"),
    ({"kv_lens": np.array([1.0, 2.0])}, "kv_lens: expected int32 or int64, got float64"),
    ({"kv_lens": np.array([1, 2], np.uint16)}, "kv_lens: dtype uint16 is not supported, expected int32 or int64"),
    ({"out": np.ones((2, 4, 3, 6))}, "out: expected float32 as in q, got float64"),
]

VALUES: list[tuple[dict[str, Any], str]] = [
    ({"scale": float("nan")}, "scale: expected a finite number, got nan"),
    ({"scale": float("inf")}, "scale: expected a finite number, got inf"),
    ({"softcap": -1.0}, "softcap: expected a positive finite number"),
    ({"softcap": float("nan")}, "softcap: expected a positive finite number"),
    ({"dropout": 0.1}, "dropout: p = 0.1 needs a seed, and none was given"),
    ({"dropout": 1.5, "seed": 1}, "dropout: expected a probability"),
    ({"dropout": float("nan")}, "dropout: expected a probability"),
    ({"seed": -1}, "seed: -1, expected 0 to 2**64 - 1"),
    ({"window": (-1, 0)}, "window: expected left >= 0"),
    ({"window": (0, -3)}, "window: expected right >= 0"),
    ({"window": (1, 2, 3)}, "window: expected a pair (left, right), with None for a side without bound, got 3 items"),
    ({"window": ()}, "window: expected a pair"),
    ({"kv_lens": [-1, 2]}, "kv_lens: expected 0 to kv_len = 5, got -1 for batch 0"),
    ({"kv_lens": [5, 6]}, "kv_lens: expected 0 to kv_len = 5, got 6 for batch 1"),
    ({"kv_lens": 6}, "kv_lens: expected 0 to kv_len = 5, got 6"),
    ({"query_offset": 2**70}, "query_offset: 1180591620717411303424 does not fit 64 bits"),
    ({"query_offset": 2**60 + 1}, "query_offset: expected a number within +-2^60"),
    ({"query_offset": [0, -(2**60) - 1]}, "query_offset: expected a number within +-2^60"),
    ({"scale": HUGE}, "scale: an int of 1329 bits does not fit 64-bit floating point"),
    ({"softcap": -HUGE}, "softcap: an int of 1329 bits does not fit 64-bit floating point"),
    ({"dropout": HUGE}, "dropout: an int of 1329 bits does not fit 64-bit floating point"),
    ({"query_offset": -HUGE}, "query_offset: an int of 1329 bits does not fit 64 bits"),
    ({"query_offset": [0, HUGE]}, "query_offset: an int of 1329 bits does not fit 64 bits"),
    ({"kv_lens": HUGE}, "kv_lens: an int of 1329 bits does not fit 64 bits"),
    ({"kv_lens": [2**63, 0]}, "kv_lens: 9223372036854775808 does not fit 64 bits"),
    ({"window": (HUGE, 0)}, "window[0]: an int of 1329 bits does not fit 64 bits"),
    ({"window": (None, HUGE)}, "window[1]: an int of 1329 bits does not fit 64 bits"),
    ({"seed": HUGE}, "seed: an int of 1329 bits, expected 0 to 2**64 - 1"),
    ({"return_stats": True, "stats_keys": [HUGE]}, "stats_keys: an int of 1329 bits does not fit 64 bits"),
    ({"return_logits": "x" * 9999}, 'return_logits: expected "scaled", "capped" or "masked", got "xxxxxxxx'),
    ({"return_logits": "masked\0"}, "return_logits: expected"),
    ({"return_logits": "\ud800"}, "return_logits: expected"),
    ({"return_logits": "raw"}, 'return_logits: expected "scaled", "capped" or "masked", got "raw"'),
    (
        {"return_weights": qkv.Select(heads=[4])},
        "return_weights: Select.heads: expected indices from 0 to below num_heads = 4",
    ),
    (
        {"return_weights": qkv.Select(rows=[-1])},
        "return_weights: Select.rows: expected indices from 0 to below q_len = 3",
    ),
    ({"return_stats": True, "stats_keys": [5]}, "stats_keys: expected indices from 0 to below kv_len = 5"),
    ({"return_stats": True, "stats_keys": [1, 1]}, "stats_keys: key 1 is listed more than once"),
    ({"stats_keys": [1]}, "stats_keys: given without return_stats=True"),
]

TYPES: list[tuple[dict[str, Any], str]] = [
    (
        {"q": [[1.0]]},
        "q: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got list; convert it with "
        "numpy.asarray",
    ),
    ({"q": None}, "q: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got NoneType"),
    (
        {"q": np.float32(1)},
        "q: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got numpy.float32",
    ),
    (
        {"k": memoryview(b"ab")},
        "k: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got memoryview",
    ),
    ({"q": np.ma.ones((2, 4, 3, 8))}, "MaskedArray; pass its .data, and what it hides as mask="),
    ({"mask": np.ma.ones((3, 5), bool)}, "mask: expected a NumPy array"),
    ({"mask": True}, "mask: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got bool"),
    ({"sinks": [0.0] * 4}, "sinks: expected a NumPy array"),
    ({"causal": 1}, "causal: expected a bool, got int 1"),
    ({"causal": None}, "causal: expected a bool, got NoneType"),
    ({"causal": np.ones(3, bool)}, "causal: expected a bool, got numpy.ndarray"),
    ({"scale": "0.5"}, "scale: expected a number, got str '0.5'"),
    ({"scale": True}, "scale: expected a number, got bool"),
    ({"scale": 1j}, "scale: expected a number, got complex"),
    ({"softcap": None}, "softcap: expected a number, got NoneType"),
    ({"dropout": None}, "dropout: expected a number, got NoneType"),
    ({"seed": 1.5}, "seed: expected an int, got float 1.5"),
    ({"window": 5}, "window: expected a pair (left, right), with None for a side without bound, got int 5"),
    ({"window": "ab"}, "window: expected a pair (left, right), with None for a side without bound, got str 'ab'"),
    ({"window": (1.5, 0)}, "window[0]: expected an int or None, got float 1.5"),
    ({"window": (0, True)}, "window[1]: expected an int or None, got bool"),
    ({"window": np.array([1, 2])}, "window: expected a pair"),
    ({"query_offset": 1.5}, "query_offset: expected an int or a sequence of ints, got float 1.5"),
    ({"query_offset": True}, "query_offset: expected an int"),
    ({"query_offset": [0, 0.5]}, "query_offset: expected ints in the sequence, got float 0.5"),
    ({"kv_lens": "35"}, "kv_lens: expected an int or a sequence of ints, got str '35'"),
    ({"kv_lens": [None, 1]}, "kv_lens: expected ints in the sequence, got NoneType"),
    ({"kv_lens": {1, 2}}, "kv_lens: expected an int or a sequence of ints, got set"),
    ({"kv_lens": frozenset([1, 2])}, "kv_lens: expected an int or a sequence of ints, got frozenset"),
    ({"kv_lens": {1: 2, 2: 1}}, "kv_lens: expected an int or a sequence of ints, got dict"),
    ({"kv_lens": b"ab"}, "kv_lens: expected an int or a sequence of ints, got bytes"),
    ({"kv_lens": bytearray(b"\1\2")}, "kv_lens: expected an int or a sequence of ints, got bytearray"),
    ({"kv_lens": True}, "kv_lens: expected an int or a sequence of ints, got bool True"),
    ({"kv_lens": [True, False]}, "kv_lens: expected ints in the sequence, got bool True"),
    ({"kv_lens": [np.True_, 1]}, "kv_lens: expected ints in the sequence, got numpy.bool"),
    ({"kv_lens": [np.array([1]), 1]}, "kv_lens: expected ints in the sequence, got numpy.ndarray"),
    ({"query_offset": {0, 1}}, "query_offset: expected an int or a sequence of ints, got set"),
    ({"return_stats": True, "stats_keys": {1}}, "stats_keys: expected an int or a sequence of ints, got set"),
    ({"scale": np.True_}, "scale: expected a number, got numpy.bool"),
    ({"scale": np.ones(1)}, "scale: expected a number, got numpy.ndarray"),
    ({"scale": "x" * 9999}, "scale: expected a number, got str 'xxxxxxxx"),
    ({"causal": HUGE}, "causal: expected a bool, got int of 1329 bits"),
    ({"return_weights": SimpleNamespace(heads={0}, rows=None)}, "return_weights: Select.heads: expected a sequence"),
    ({"return_lse": None}, "return_lse: expected a bool, got NoneType"),
    ({"return_weights": None}, "return_weights: expected a bool or a qkv.Select, got NoneType"),
    ({"return_weights": 1}, "return_weights: expected a bool or a qkv.Select, got int"),
    ({"return_logits": True}, 'return_logits: expected "scaled", "capped" or "masked", got bool'),
    ({"return_stats": "yes"}, "return_stats: expected a bool, got str 'yes'"),
    ({"return_stats": True, "stats_keys": 0.5}, "stats_keys: expected an int or a sequence of ints, got float 0.5"),
    ({"out": "out"}, "out: expected a NumPy array"),
    (
        {"mask": DLPackOnly(np.ones((3, 5), bool))},
        "mask: a DLPack object, but q is a NumPy array; all arrays of a call are of one kind",
    ),
    ({"q": DLPackOnly(np.ones((2, 4, 3, 8), F))}, "k: a NumPy array, but q is a DLPack object"),
    ({"unknown": 1}, "unexpected keyword argument 'unknown'"),
]


@pytest.mark.parametrize(("changes", "text"), SHAPES, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_shapes(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(qkv.ShapeError, match=r"^" + re.escape(text)) as info:
        call(**changes)
    assert isinstance(info.value, ValueError)


@pytest.mark.parametrize(("changes", "text"), DTYPES, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_dtypes(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(qkv.DtypeError, match=r"^" + re.escape(text)) as info:
        call(**changes)
    assert isinstance(info.value, TypeError)


@pytest.mark.parametrize(("changes", "text"), VALUES, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_values(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"^" + re.escape(text)) as info:
        call(**changes)
    assert isinstance(info.value, qkv.ValueError)


@pytest.mark.parametrize(("changes", "text"), TYPES, ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_types(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        call(**changes)


@pytest.mark.parametrize(
    ("changes", "text"), [*SHAPES, *DTYPES, *VALUES, *TYPES], ids=lambda x: x[:40] if isinstance(x, str) else ""
)
def test_texts_are_one_short_line(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as info:
        call(**changes)
    assert len(str(info.value)) < 200
    assert str(info.value).isprintable()


@pytest.mark.parametrize(
    ("changes", "text"), [*SHAPES, *DTYPES, *VALUES], ids=lambda x: x[:40] if isinstance(x, str) else ""
)
def test_reference_refuses_the_same(changes: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^" + re.escape(text)):
        qkv.reference.attention(**{**base(), **changes})


class Raises:
    """A number, and a sequence, whose methods raise."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __float__(self) -> float:
        raise self.error

    def __index__(self) -> int:
        raise self.error

    def __iter__(self) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), RuntimeError("mine"), MemoryError("none")], ids=repr)
@pytest.mark.parametrize(
    "name",
    ["scale", "softcap", "dropout", "seed", "query_offset", "kv_lens", "window", "stats_keys", "return_weights"],
)
def test_what_a_method_raises_goes_through(name: str, error: BaseException) -> None:
    class Chooses:
        @property
        def heads(self) -> Any:
            raise error

    value = {"window": (Raises(error), 0), "return_weights": Chooses()}.get(name, Raises(error))
    with pytest.raises(type(error)) as info:
        call(**{name: value}, return_stats=True)
    assert info.value is error


def test_errors_have_one_base() -> None:
    for error in (qkv.ShapeError, qkv.DtypeError, qkv.ValueError):
        assert issubclass(error, qkv.Error)
        assert error.__module__ == "qkv"
        assert error.__doc__


def test_select_along_an_axis_that_is_not_there() -> None:
    q = np.ones((3, 8), F)
    with pytest.raises(
        qkv.ShapeError, match=r"^return_weights: Select.heads chooses along an axis that q of shape \[3, 8\]"
    ):
        qkv.attention(q, q, q, return_weights=qkv.Select(heads=[0]))


def test_out_is_untouched_by_an_error() -> None:
    out = np.full((2, 4, 3, 6), 3, F)
    for changes, _ in [*SHAPES, *DTYPES, *VALUES, *TYPES]:
        if "out" not in changes:
            with pytest.raises((ValueError, TypeError)):
                call(**{**changes, "out": out})
    assert (out == 3).all()
