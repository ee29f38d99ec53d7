"""merge_states and the mask helpers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, assert_close, assert_same_bits, optional

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")


def inputs(rng: np.random.Generator, keys: int = 30, dtype: Any = np.float32) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(dtype) for shape in ((2, 4, 5, 8), (2, 2, keys, 8), (2, 2, keys, 6))]


def parts_of(q: Any, k: Any, v: Any, cuts: list[int], **options: Any) -> tuple[list[Any], list[Any]]:
    """Attention over keys cuts[i] to cuts[i + 1], each by a mask, so that positions stay."""
    outs, lses = [], []
    for begin, end in itertools.pairwise(cuts):
        inside = (np.arange(k.shape[-2]) >= begin) & (np.arange(k.shape[-2]) < end)
        out, lse = qkv.attention(q, k, v, mask=inside, return_lse=True, **options)
        outs.append(out)
        lses.append(lse)
    return outs, lses


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cuts", [[0, 30], [0, 7, 30], [0, 0, 1, 29, 30, 30]])
def test_parts_make_the_whole(cuts: list[int], dtype: Any, target: str, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng, dtype=dtype)
    sinks = rng.standard_normal(4).astype(dtype)
    options: dict[str, Any] = {"causal": True, "query_offset": 3}
    outs, lses = parts_of(q, k, v, cuts, **options)
    out, lse = qkv.merge_states(outs, lses, sinks=sinks)
    whole, whole_lse = qkv.attention(q, k, v, sinks=sinks, return_lse=True, **options)
    assert_close(out, whole, size=float(np.abs(v).max()))
    assert_close(lse, whole_lse, size=float(np.abs(whole_lse).max()))
    assert out.dtype == lse.dtype == dtype


def test_empty_parts_stay_empty() -> None:
    empty = np.zeros((1, 1, 2, 3), np.float32), np.full((1, 1, 2), -np.inf, np.float32)
    out, lse = qkv.merge_states([empty[0], empty[0].copy()], [empty[1], empty[1].copy()])
    np.testing.assert_array_equal(out, empty[0])
    np.testing.assert_array_equal(lse, empty[1])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_fewer_axes(rank: int, rng: np.random.Generator) -> None:
    shape = (4, 5, 6)[3 - rank :]
    outs = [rng.standard_normal(shape) for _ in range(2)]
    lses = [rng.standard_normal(shape[:-1]) for _ in range(2)]
    out, lse = qkv.merge_states(outs, lses)
    assert out.shape == shape
    assert lse.shape == shape[:-1]
    expected = np.logaddexp(*lses)
    assert_close(lse, expected)
    assert_close(
        out, sum(np.exp(one - expected)[..., None] * part for one, part in zip(lses, outs, strict=True)), size=3
    )


@needs_torch
def test_tensors(rng: np.random.Generator) -> None:
    outs, lses = parts_of(*inputs(rng), [0, 11, 30])
    expected = qkv.merge_states(outs, lses)
    out, lse = qkv.merge_states([torch.from_numpy(o) for o in outs], tuple(torch.from_numpy(x) for x in lses))
    assert type(out) is type(lse) is torch.Tensor
    assert_same_bits(out.numpy(), expected[0])
    assert_same_bits(lse.numpy(), expected[1])
    with pytest.raises(TypeError, match=r"^lses\[0\]: a NumPy array, but outs\[0\] is a PyTorch tensor"):
        qkv.merge_states([torch.from_numpy(outs[0])], [lses[0]])
    with pytest.raises(ValueError, match=r"^outs\[0\]: requires grad"):
        qkv.merge_states([torch.from_numpy(outs[0]).requires_grad_()], [torch.from_numpy(lses[0])])


def test_dlpack_objects_give_numpy(rng: np.random.Generator) -> None:
    outs, lses = parts_of(*inputs(rng), [0, 11, 30])
    out, _ = qkv.merge_states([DLPackOnly(o) for o in outs], [DLPackOnly(x) for x in lses])
    assert_same_bits(out, qkv.merge_states(outs, lses)[0])


def test_merge_errors() -> None:
    out, lse = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=r"^outs: expected at least one array, got none"):
        qkv.merge_states([], [])
    with pytest.raises(ValueError, match=r"^lses: 1 arrays, expected 2"):
        qkv.merge_states([out, out.copy()], [lse])
    with pytest.raises(TypeError, match=r"^outs: expected a list or tuple of arrays, got numpy.ndarray"):
        qkv.merge_states(out, lse)  # type: ignore[arg-type]
    with pytest.raises(qkv.ShapeError, match=r"^outs\[1\]: expected \[1, 2, 3, 4\] as in outs\[0\], got"):
        qkv.merge_states([out, np.ones((1, 2, 3, 5), np.float32)], [lse, lse])
    with pytest.raises(qkv.DtypeError, match=r"^outs\[1\]: expected float32 as in outs\[0\], got float64$"):
        qkv.merge_states([out, out.astype(np.float64)], [lse, lse])  # type: ignore[list-item]
    with pytest.raises(qkv.ShapeError, match=r"^lses\[10\]: expected \[batch, num_heads, q_len\] = \[1, 2, 3\], got"):
        qkv.merge_states([out] * 11, [lse] * 10 + [lse[:, :1]])
    with pytest.raises(qkv.ShapeError, match=r"^outs\[0\]: 9 axes; at most 8 are supported$"):
        qkv.merge_states([np.ones((1,) * 9, np.float32)], [lse])
    with pytest.raises(qkv.ShapeError, match=r"^lses\[0\]: expected"):
        qkv.merge_states([out], [lse[:, :1]])
    with pytest.raises(qkv.DtypeError, match=r"^lses\[0\]: expected float32, got float64"):
        qkv.merge_states([out], [lse.astype(np.float64)])  # type: ignore[list-item]
    with pytest.raises(qkv.DtypeError, match=r"^outs\[0\]"):
        qkv.merge_states([out.astype(np.int64)], [lse])  # type: ignore[list-item]
    with pytest.raises(qkv.ShapeError, match=r"^sinks: expected"):
        qkv.merge_states([out], [lse], sinks=np.ones(3, np.float32))


@pytest.mark.parametrize("lengths", [[2, 0, 5], np.array([2, 0, 5]), (np.int32(2), 0, 5)])
def test_padding(lengths: Any) -> None:
    mask = qkv.masks.padding(lengths, 5)
    assert mask.dtype == bool
    assert mask.shape == (3, 1, 1, 5)
    np.testing.assert_array_equal(mask[:, 0, 0], np.arange(5) < np.array([[2], [0], [5]]))
    assert mask.flags.writeable


@pytest.mark.parametrize(
    ("q_len", "kv_len", "offset"), [(3, 3, None), (2, 5, None), (5, 2, None), (3, 4, 0), (3, 4, -1), (0, 3, 2)]
)
def test_causal(q_len: int, kv_len: int, offset: int | None) -> None:
    shift = kv_len - q_len if offset is None else offset
    expected = np.arange(kv_len) <= np.arange(q_len)[:, None] + shift
    np.testing.assert_array_equal(qkv.masks.causal(q_len, kv_len, offset), expected)
    if q_len:
        a = np.random.default_rng(0).standard_normal((max(q_len, kv_len), 4))
        assert_same_bits(
            qkv.attention(a[:q_len], a[:kv_len], a[:kv_len], causal=True, query_offset=offset),
            qkv.attention(a[:q_len], a[:kv_len], a[:kv_len], mask=qkv.masks.causal(q_len, kv_len, offset)),
        )


def test_mask_errors() -> None:
    with pytest.raises(qkv.ValueError, match=r"^lengths: expected 0 to n = 5, got 6 for batch 1$"):
        qkv.masks.padding([1, 6], 5)
    with pytest.raises(qkv.ValueError, match=r"^lengths: expected 0 to n = 5, got -1 for batch 0$"):
        qkv.masks.padding([-1], 5)
    with pytest.raises(qkv.ValueError, match=r"^n: expected at least 0, got -1$"):
        qkv.masks.padding([1], -1)
    with pytest.raises(TypeError, match=r"^lengths: expected ints in the sequence, got float 1.5"):
        qkv.masks.padding([1.5], 5)  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^lengths: expected an int or a sequence of ints, got set"):
        qkv.masks.padding({1, 2}, 5)
    with pytest.raises(ValueError, match=r"^q_len: expected at least 0, got -1"):
        qkv.masks.causal(-1, 3)
    with pytest.raises(TypeError, match=r"^kv_len: expected an int, got float"):
        qkv.masks.causal(1, 3.0)  # type: ignore[arg-type]


def test_masks_that_are_too_large() -> None:
    too_many = r"has more elements than 63 bits can count$"
    with pytest.raises(qkv.ShapeError, match=r"^n: \[4, 1, 1, 4611686018427387904\] " + too_many):
        qkv.masks.padding([1] * 4, 2**62)
    with pytest.raises(qkv.ShapeError, match=r"^q_len, kv_len: \[1099511627776, 1099511627776\] " + too_many):
        qkv.masks.causal(2**40, 2**40)
    with pytest.raises(MemoryError, match=r"^lengths, n: no memory for a mask of 2 times 2305843009213693952 bytes$"):
        qkv.masks.padding([1, 2], 2**61)
    with pytest.raises(
        MemoryError, match=r"^q_len, kv_len: no memory for a mask of 2305843009213693952 times 2 bytes$"
    ):
        qkv.masks.causal(2**61, 2)
    for name, arguments in {"q_len": (10**400, 1), "kv_len": (1, 10**400), "query_offset": (1, 1, 10**400)}.items():
        with pytest.raises(qkv.ValueError, match=rf"^{name}: an int of 1329 bits does not fit 64 bits$"):
            qkv.masks.causal(*arguments)
    with pytest.raises(qkv.ValueError, match=r"^n: an int of 1329 bits does not fit 64 bits$"):
        qkv.masks.padding([1], 10**400)
