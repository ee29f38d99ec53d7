"""What comes back: order, kinds, dtypes, shapes, out=, and the plain Python forms of the arguments."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, assert_close, assert_same_bits, bare_signature, optional

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")

SIGNATURE = (
    "(q, k, v=None, *, mask=None, bias=None, causal=False, query_offset=None, window=None, scale=None, softcap=0.0, "
    "sinks=None, alibi_slopes=None, kv_lens=None, dropout=0.0, seed=None, return_lse=False, return_weights=False, "
    "return_logits=None, return_stats=False, stats_keys=None, out=None)"
)
Q_SHAPE, K_SHAPE, V_SHAPE = (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)
OUT_SHAPE, ROW_SHAPE, MATRIX_SHAPE = (2, 4, 3, 6), (2, 4, 3), (2, 4, 3, 5)


def as_numpy(array: Any) -> np.ndarray:
    return array


def as_torch(array: Any) -> Any:
    return torch.from_numpy(array)


KINDS = [
    pytest.param(as_numpy, np.ndarray, id="numpy"),
    pytest.param(as_torch, getattr(torch, "Tensor", None), id="torch", marks=needs_torch),
    pytest.param(DLPackOnly, np.ndarray, id="dlpack"),
]
DTYPES = [np.float32, np.float64]


def inputs(rng: np.random.Generator, dtype: Any = np.float32) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(dtype) for shape in (Q_SHAPE, K_SHAPE, V_SHAPE)]


@pytest.mark.parametrize("function", [qkv.attention, qkv.reference.attention])
def test_signature(function: Any) -> None:
    assert bare_signature(function) == SIGNATURE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("convert", "result_type"), KINDS)
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=4)), ids=str)
def test_results_in_order(convert: Any, result_type: Any, dtype: Any, wanted: Any, rng: np.random.Generator) -> None:
    lse, logits, weights, stats = wanted
    q, k, v = map(convert, inputs(rng, dtype))
    results = qkv.attention(
        q, k, v, return_lse=lse, return_logits="masked" if logits else None, return_weights=weights, return_stats=stats
    )
    if not any(wanted):
        results = (results,)
    assert type(results) is tuple
    assert len(results) == 1 + sum(wanted)
    arrays = list(results[:-1] if stats else results)
    shapes = [OUT_SHAPE] + [
        s for s, given in zip([ROW_SHAPE, MATRIX_SHAPE, MATRIX_SHAPE], wanted, strict=False) if given
    ]
    if stats:
        assert isinstance(results[-1], qkv.Stats)
        assert results[-1]._fields == ("max_raw", "max_logit", "max_key", "max_weight", "entropy", "key_weight")
        assert str(results[-1].max_key.dtype).endswith("int64")
        arrays += [array for name, array in results[-1]._asdict().items() if name != "max_key"]
        shapes += [ROW_SHAPE] * 5
    for array, shape in zip(arrays, shapes, strict=True):
        assert type(array) is result_type
        assert tuple(array.shape) == shape
        assert str(array.dtype).endswith(np.dtype(dtype).name)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_leading_axes_follow_q(rank: int, rng: np.random.Generator) -> None:
    sizes = {"q": (2, 4, 3, 8)[-rank:], "k": (2, 4, 5, 8)[-rank:], "v": (2, 4, 5, 6)[-rank:]}
    q, k, v = (rng.standard_normal(shape) for shape in sizes.values())
    rows, keys = (3 if rank > 1 else 1), (5 if rank > 1 else 1)
    batch, heads = (2 if rank > 3 else 1), (4 if rank > 2 else 1)
    out, lse, logits, weights, stats = qkv.attention(
        q, k, v, return_lse=True, return_logits="scaled", return_weights=True, return_stats=True
    )
    assert out.shape == (*q.shape[:-1], 6)
    assert lse.shape == stats.entropy.shape == stats.max_key.shape == q.shape[:-1]
    assert logits.shape == weights.shape == (*q.shape[:-1], keys)
    full = qkv.attention(
        q.reshape(batch, heads, rows, 8), k.reshape(batch, heads, keys, 8), v.reshape(batch, heads, keys, 6)
    )
    assert_same_bits(out, full.reshape(out.shape))


def test_keys_may_have_fewer_axes_than_queries(rng: np.random.Generator) -> None:
    q, k, v = rng.standard_normal((1, 4, 3, 8)), rng.standard_normal((5, 8)), rng.standard_normal((5, 6))
    assert_same_bits(qkv.attention(q, k, v), qkv.attention(q, k[None, None], v[None, None]))


@pytest.mark.parametrize(("convert", "result_type"), KINDS)
def test_out_is_returned(convert: Any, result_type: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    memory = np.full(OUT_SHAPE, 7, np.float32)
    out = convert(memory)
    assert qkv.attention(*map(convert, arrays), out=out) is out
    assert_same_bits(memory, qkv.attention(*arrays))
    again, lse = qkv.attention(*map(convert, arrays), out=out, return_lse=True)
    assert again is out
    assert type(lse) is result_type


def test_out_may_have_any_strides(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    memory = np.full((2, 3, 4, 2, 6), np.nan, np.float32)
    out = memory[:, ::-1, :, 1].transpose(0, 2, 1, 3)
    assert qkv.attention(*arrays, out=out) is out
    assert_same_bits(out, qkv.attention(*arrays))
    assert np.isnan(memory[:, :, :, 0]).all()


@needs_torch
def test_autograd_notices_that_out_was_written(rng: np.random.Generator) -> None:
    out = torch.ones(OUT_SHAPE)
    weight = torch.ones(OUT_SHAPE, requires_grad=True)
    loss = (out * weight).sum()
    qkv.attention(*map(as_torch, inputs(rng)), out=out)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(("heads", "rows"), [(None, None), ([2], None), (None, [1]), ([3, 0], [2, 0, 2]), ([], [])])
def test_select(heads: Any, rows: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    out, everything = qkv.attention(*arrays, return_weights=True)
    same_out, chosen = qkv.attention(*arrays, return_weights=qkv.Select(heads=heads, rows=rows))
    assert_same_bits(out, same_out)
    assert_same_bits(
        chosen, everything[:, slice(None) if heads is None else heads][:, :, slice(None) if rows is None else rows]
    )


def test_select_takes_any_ints() -> None:
    assert qkv.Select(heads=range(2), rows=np.array([1, 0])) == qkv.Select([0, 1], (1, 0))
    assert qkv.Select(heads=(i for i in (1, 0)), rows=()) == qkv.Select([1, 0], [])
    assert qkv.Select() == qkv.Select(None, None)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (1.5, "expected a sequence of ints, got float 1.5"), (1, "expected a sequence of ints, got int 1"),
        ("01", "expected a sequence of ints, got str '01'"), (b"x", "expected a sequence of ints, got bytes"),
        (bytearray(b"x"), "expected a sequence of ints, got bytearray"),
        ({0}, "expected a sequence of ints, got set"), (frozenset([0]), "expected a sequence of ints, got frozenset"),
        ({0: 1}, "expected a sequence of ints, got dict"), ([0.5], "expected ints in the sequence, got float 0.5"),
        ([True], "expected ints in the sequence, got bool True"),
        (np.array([True]), "expected ints in the sequence, got numpy.bool"),
        ([[0]], "expected ints in the sequence, got list"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["heads", "rows"])
def test_select_takes_nothing_else(name: str, bad: Any, text: str) -> None:
    with pytest.raises(TypeError, match=rf"^Select\.{name}: {re.escape(text)}"):
        qkv.Select(**{name: bad})
    with pytest.raises(ValueError, match=rf"^Select\.{name}: an int of 1329 bits does not fit 64 bits$"):
        qkv.Select(**{name: [10**400]})


@pytest.mark.parametrize(
    "lens", [[3, 5], (3, 5), np.array([3, 5]), np.array([3, 5], np.int32), [np.int64(3), np.int8(5)]]
)
def test_forms_of_kv_lens(lens: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    assert_same_bits(qkv.attention(*arrays, kv_lens=lens), qkv.attention(*arrays, mask=qkv.masks.padding([3, 5], 5)))


def test_one_length_or_offset_is_for_every_batch(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    for one in (2, np.int32(2)):
        assert_same_bits(qkv.attention(*arrays, kv_lens=one), qkv.attention(*arrays, kv_lens=[2, 2]))
        assert_same_bits(
            qkv.attention(*arrays, causal=True, query_offset=one),
            qkv.attention(*arrays, causal=True, query_offset=[2, 2]),
        )


@pytest.mark.parametrize("offset", [[0, -1], (0, -1), np.array([0, -1]), np.array([0, -1], np.int32)])
def test_forms_of_query_offset(offset: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    mask = np.stack([qkv.masks.causal(3, 5, 0), qkv.masks.causal(3, 5, -1)])[:, None]
    assert_same_bits(qkv.attention(*arrays, causal=True, query_offset=offset), qkv.attention(*arrays, mask=mask))


@needs_torch
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_indices_as_tensors(dtype: str, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    indices = {"kv_lens": [3, 5], "query_offset": [1, 0]}
    expected = qkv.attention(*arrays, causal=True, **indices)
    tensors = {name: torch.tensor(value, dtype=getattr(torch, dtype)) for name, value in indices.items()}
    assert_same_bits(qkv.attention(*map(as_torch, arrays), causal=True, **tensors).numpy(), expected)


@pytest.mark.parametrize("window", [(1, None), [1, None], (np.int64(1), None)])
def test_forms_of_window(window: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    visible = np.arange(5) >= np.arange(2, 5)[:, None] - 1
    assert_same_bits(qkv.attention(*arrays, window=window), qkv.attention(*arrays, mask=visible))


def test_numpy_scalars_are_numbers(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    expected = qkv.attention(*arrays, causal=True, scale=0.5, softcap=2.0, return_lse=True)
    scalars = {"scale": np.float32(0.5), "softcap": np.float64(2), "dropout": np.float32(0), "seed": np.uint64(3)}
    actual = qkv.attention(*arrays, causal=np.True_, return_lse=np.True_, **scalars)
    for a, b in zip(actual, expected, strict=True):
        assert_same_bits(a, b)
    assert_same_bits(qkv.attention(*arrays, scale=2), qkv.attention(*arrays, scale=2.0))


@pytest.mark.parametrize("keys", [[0, 4], (4, 0), np.array([0, 4]), range(0, 5, 4)])
def test_stats_keys(keys: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    _, weights, stats = qkv.attention(*arrays, return_weights=True, return_stats=True, stats_keys=keys)
    assert_close(stats.key_weight, weights[..., [0, 4]].sum(-1, dtype=np.float64))
    _, none = qkv.attention(*arrays, return_stats=True)
    assert not none.key_weight.any()


def test_reference_gives_the_same_results(rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    options: dict[str, Any] = {"causal": True, "return_lse": True, "return_stats": True, "kv_lens": [4, 5]}
    for actual, expected in zip(
        qkv.attention(q, k, v, **options)[:2], qkv.reference.attention(q, k, v, **options)[:2], strict=True
    ):
        assert_close(actual, expected)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'cauzal'"):
        qkv.reference.attention(q, k, v, cauzal=True)


def test_hand_worked_case() -> None:
    q = k = np.zeros((2, 4), np.float32)
    v = np.arange(8, dtype=np.float32).reshape(2, 4)
    out, lse, weights = qkv.attention(q, k, v, causal=True, return_lse=True, return_weights=True)
    np.testing.assert_array_equal(out, [[0, 1, 2, 3], [2, 3, 4, 5]])
    np.testing.assert_array_equal(weights, [[1, 0], [0.5, 0.5]])
    np.testing.assert_allclose(lse, [0, np.log(2)], rtol=1e-6)
