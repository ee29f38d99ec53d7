"""qkv.attention_varlen: ragged batches from NumPy and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_close, assert_same_bits, bare_signature, optional

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")

Q_LENGTHS = [3, 0, 40, 1, 17]
KV_LENGTHS = [5, 2, 40, 0, 90]
SIGNATURE = (
    "(q, k, v, cu_seqlens_q, cu_seqlens_k, *, causal=False, query_offset=None, window=None, scale=None, softcap=0.0, "
    "sinks=None, alibi_slopes=None, dropout=0.0, seed=None, return_lse=False, return_stats=False, stats_keys=None, "
    "out=None)"
)


def cumulative(lengths: list[int], dtype: Any = np.int32) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


def inputs(dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    total_q, total_kv = sum(Q_LENGTHS), sum(KV_LENGTHS)
    return [
        rng.standard_normal(shape).astype(dtype) for shape in ((total_q, 4, 16), (total_kv, 2, 16), (total_kv, 2, 12))
    ]


def segments(*arrays: np.ndarray) -> list[list[np.ndarray]]:
    """[q, k, v] of each segment as [heads, length, dim]."""
    bounds = [cumulative(Q_LENGTHS), cumulative(KV_LENGTHS), cumulative(KV_LENGTHS)]
    return [
        [array[bound[s] : bound[s + 1]].swapaxes(0, 1) for array, bound in zip(arrays, bounds, strict=True)]
        for s in range(len(Q_LENGTHS))
    ]


@pytest.mark.parametrize("function", [qkv.attention_varlen, qkv.reference.attention_varlen])
def test_signature(function: Any) -> None:
    assert bare_signature(function) == SIGNATURE


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_segments_have_the_bits_of_calls_of_their_own(dtype: Any, causal: bool) -> None:
    q, k, v = inputs(dtype)
    out, lse, stats = qkv.attention_varlen(
        q, k, v, cumulative(Q_LENGTHS), cumulative(KV_LENGTHS), causal=causal, return_lse=True, return_stats=True,
        stats_keys=[0, 1],
    )  # fmt: skip
    assert out.shape == (61, 4, 12)
    assert out.dtype == dtype
    assert lse.shape == stats.entropy.shape == (4, 61)
    bounds = cumulative(Q_LENGTHS)
    for s, (one_q, one_k, one_v) in enumerate(segments(q, k, v)):
        rows = slice(bounds[s], bounds[s + 1])
        keys = [key for key in (0, 1) if key < one_k.shape[1]]
        own, own_lse, own_stats = qkv.attention(
            one_q, one_k, one_v, causal=causal, return_lse=True, return_stats=True, stats_keys=keys
        )
        assert_same_bits(out[rows].swapaxes(0, 1), own)
        assert_same_bits(lse[:, rows], own_lse)
        for ours, theirs in zip(stats, own_stats, strict=True):
            assert_same_bits(ours[:, rows], theirs)


def test_reference() -> None:
    q, k, v = inputs()
    arguments = (q, k, v, cumulative(Q_LENGTHS), cumulative(KV_LENGTHS))
    out, lse = qkv.attention_varlen(*arguments, window=(20, 3), softcap=2.0, return_lse=True)
    expected, expected_lse = qkv.reference.attention_varlen(*arguments, window=(20, 3), softcap=2.0, return_lse=True)
    assert_close(out, expected)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)


def test_padded_batch_has_the_same_bits() -> None:
    q, k, v = inputs()
    ragged = qkv.attention_varlen(q, k, v, cumulative(Q_LENGTHS), cumulative(KV_LENGTHS), causal=True)
    padded = [np.full((5, heads, length, dim), np.nan, np.float32) for heads, length, dim in ((4, 40, 16), (2, 90, 16))]
    padded.append(np.full((5, 2, 90, 12), np.nan, np.float32))
    for s, parts in enumerate(segments(q, k, v)):
        for target, part in zip(padded, parts, strict=True):
            target[s, :, : part.shape[1]] = part
    offsets = np.array(KV_LENGTHS) - np.array(Q_LENGTHS)
    full = qkv.attention(*padded, kv_lens=KV_LENGTHS, causal=True, query_offset=offsets)
    bounds = cumulative(Q_LENGTHS)
    for s, length in enumerate(Q_LENGTHS):
        assert_same_bits(ragged[bounds[s] : bounds[s + 1]].swapaxes(0, 1), full[s, :, :length])


@pytest.mark.parametrize("lengths", [list, tuple, np.int32, np.int64], ids=str)
def test_forms_of_the_lengths(lengths: Any) -> None:
    q, k, v = inputs()
    bounds = [cumulative(Q_LENGTHS), cumulative(KV_LENGTHS)]
    given = [bound.astype(lengths) if lengths in (np.int32, np.int64) else lengths(bound.tolist()) for bound in bounds]
    assert_same_bits(qkv.attention_varlen(q, k, v, *given), qkv.attention_varlen(q, k, v, *bounds))


def test_what_each_segment_may_have_of_its_own() -> None:
    q, k, v = inputs()
    rng = np.random.default_rng(4)
    sinks = rng.standard_normal((5, 4)).astype(np.float32)
    slopes = rng.uniform(0.01, 0.2, (5, 4)).astype(np.float32)
    offsets = [2, 0, 5, -3, 80]
    bounds = cumulative(Q_LENGTHS)
    out = qkv.attention_varlen(
        q, k, v, bounds, cumulative(KV_LENGTHS), causal=True, query_offset=offsets, sinks=sinks, alibi_slopes=slopes
    )
    for s, parts in enumerate(segments(q, k, v)):
        own = qkv.attention(*parts, causal=True, query_offset=offsets[s], sinks=sinks[s], alibi_slopes=slopes[s])
        assert_same_bits(out[bounds[s] : bounds[s + 1]].swapaxes(0, 1), own)


def test_out_is_written_in_place() -> None:
    q, k, v = inputs()
    bounds = cumulative(Q_LENGTHS), cumulative(KV_LENGTHS)
    large = np.zeros((4, 61, 24), np.float32)
    out = large.swapaxes(0, 1)[:, :, ::2]
    assert qkv.attention_varlen(q, k, v, *bounds, out=out) is out
    assert_same_bits(out, qkv.attention_varlen(q, k, v, *bounds))
    assert not large[..., 1::2].any()


@needs_torch
def test_tensors() -> None:
    arrays = [*inputs(), cumulative(Q_LENGTHS), cumulative(KV_LENGTHS)]
    out, lse = qkv.attention_varlen(*(torch.from_numpy(array) for array in arrays), causal=True, return_lse=True)
    expected, expected_lse = qkv.attention_varlen(*arrays, causal=True, return_lse=True)
    assert isinstance(out, torch.Tensor)
    assert_same_bits(out.numpy(), expected)
    assert_same_bits(lse.numpy(), expected_lse)
    half = qkv.attention_varlen(
        *(torch.from_numpy(a).bfloat16() for a in arrays[:3]), arrays[3].tolist(), arrays[4].tolist()
    )
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"cu_seqlens_q": [0, 3]}, qkv.ValueError, r"^cu_seqlens_q: expected to end with total_q = 61, got 3$"),
        ({"cu_seqlens_k": [0, 3, 2, 137]}, qkv.ValueError, r"^cu_seqlens_k: decreases from 3 to 2 at index 2$"),
        ({"cu_seqlens_k": [0, 137]}, qkv.ShapeError, r"^cu_seqlens_k: expected \[num_segments \+ 1\] = \[6\]"),
        ({"cu_seqlens_q": 5}, TypeError, r"^cu_seqlens_q: expected a sequence of ints, got int 5"),
        ({"cu_seqlens_q": None}, TypeError, r"^cu_seqlens_q: expected a sequence of ints, got NoneType"),
        ({"cu_seqlens_q": [0, 61.0]}, TypeError, r"^cu_seqlens_q: "),
        ({"cu_seqlens_q": np.array([0, 61], np.float32)}, qkv.DtypeError, r"^cu_seqlens_q: expected int32 or int64"),
        ({"mask": np.ones((61, 137), bool)}, qkv.ValueError, r"^mask: a ragged batch takes none"),
        ({"bias": np.ones((61, 137), np.float32)}, qkv.ValueError, r"^bias: a ragged batch takes none"),
        ({"kv_lens": [1, 2, 3, 0, 4]}, qkv.ValueError, r"^kv_lens: a ragged batch takes none: cu_seqlens_k"),
        ({"return_weights": True}, qkv.ValueError, r"^return_weights: a ragged batch takes none"),
        ({"return_logits": "scaled"}, qkv.ValueError, r"^return_logits: a ragged batch takes none"),
        ({"stats_keys": [100], "return_stats": True}, qkv.ValueError, r"^stats_keys: expected indices from 0"),
        ({"no_such_thing": 1}, TypeError, r"^attention_varlen\(\) got an unexpected keyword argument 'no_such_thing'"),
        ({"q": np.ones((1, 61, 4, 16), np.float32)}, qkv.ShapeError, r"^q: shape \[1, 61, 4, 16\], expected 3 axes"),
        ({"k": np.ones((137, 3, 16), np.float32)}, qkv.ShapeError, r"^k: num_kv_heads 3"),
        ({"query_offset": [1, 2]}, qkv.ShapeError, r"^query_offset: expected \[batch\] = \[5\], got \[2\]"),
    ],
)  # fmt: skip
def test_errors(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    q, k, v = inputs()
    arguments: dict[str, Any] = {
        "q": q, "k": k, "v": v, "cu_seqlens_q": cumulative(Q_LENGTHS), "cu_seqlens_k": cumulative(KV_LENGTHS), **changes
    }  # fmt: skip
    with pytest.raises(error, match=text):
        qkv.attention_varlen(**arguments)
