"""qkv.position: sinusoids, learned tables, slopes and buckets; rotations are in test_rope.py."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from support import REAL, DLPackOnly, assert_same_bits, bare_signature, optional, stored

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")
# Of the release whose inner names are used.
needs_hf = pytest.mark.needs("transformers", "5.24.0")

SIGNATURES = {
    "sinusoidal": "(n, dim, *, first=0, base=10000.0, dtype='float32')",
    "learned": "(table, ids)",
    "alibi_slopes": "(num_heads, *, dtype='float32')",
    "t5_bucket": "(relative, *, bidirectional=True, num_buckets=32, max_distance=128)",
    "t5_bias": "(table, q_len, kv_len, *, bidirectional=True, max_distance=128, query_offset=0)",
    "Rope": "(head_dim, *, base=None, rotary_dim=None, layout='half', scaling=None, max_position=None)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert bare_signature(getattr(qkv.position, name)) == SIGNATURES[name]
    assert set(qkv.position.__all__) == set(SIGNATURES)


def test_signatures_of_rope() -> None:
    apply = bare_signature(qkv.position.Rope.apply)
    assert apply == ("(self, x, positions=None, *, first=0, inverse=False, backward=False, seq_len=None, out=None)")
    assert bare_signature(qkv.position.Rope.frequencies) == "(self, seq_len=None)"
    for method in (qkv.position.Rope.apply, qkv.position.Rope.frequencies):
        assert inspect.getdoc(method)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize(("n", "dim"), [(5, 8), (3, 7), (1, 1), (0, 4), (4, 0)])
def test_sinusoidal(n: int, dim: int, dtype: str) -> None:
    table = qkv.position.sinusoidal(n, dim, first=1_000_000, base=500.0, dtype=dtype)
    expected = np.empty((n, dim))
    for i, c in np.ndindex(n, dim):
        angle = (1_000_000 + i) * float(np.longdouble(500) ** (-np.longdouble(c - c % 2) / dim))
        expected[i, c] = math.cos(angle) if c % 2 else math.sin(angle)
    assert str(table.dtype) == dtype
    assert_same_bits(table, stored(expected, dtype))


@needs_torch
def test_tables_of_torch_dtypes() -> None:
    table = qkv.position.sinusoidal(4, 6, dtype=torch.bfloat16)
    assert table.dtype == torch.bfloat16
    exact = torch.from_numpy(qkv.position.sinusoidal(4, 6, dtype=np.float64))
    assert torch.equal(table, exact.to(torch.bfloat16))
    slopes = qkv.position.alibi_slopes(3, dtype=torch.float64)
    assert slopes.tolist() == [0.0625, 0.00390625, 0.25]
    assert slopes.dtype == torch.float64


def test_sinusoidal_errors() -> None:
    with pytest.raises(qkv.ValueError, match=r"^n: expected at least 0, got -1$"):
        qkv.position.sinusoidal(-1, 4)
    with pytest.raises(qkv.ValueError, match=r"^base: expected a finite number above 1, got 1$"):
        qkv.position.sinusoidal(2, 4, base=1)
    with pytest.raises(qkv.ValueError, match=r"^first: expected positions from -2\^53 to 2\^53, got 2 rows from"):
        qkv.position.sinusoidal(2, 4, first=2**53)
    with pytest.raises(qkv.DtypeError, match=r"^dtype: expected float32, float64, float16 or bfloat16, got 'int64'$"):
        qkv.position.sinusoidal(2, 4, dtype=np.int64)
    with pytest.raises(TypeError, match=r"^dim: expected an int, got float 4.0"):
        qkv.position.sinusoidal(2, 4.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", REAL)
def test_learned(dtype: str, rng: np.random.Generator) -> None:
    table = stored(rng.standard_normal((7, 5)), dtype)
    ids = np.array([[0, 6, 3], [3, 3, 1]])
    assert_same_bits(qkv.position.learned(table, ids), table[ids])
    assert_same_bits(qkv.position.learned(table[::-1, ::2], ids.astype(np.int32)[0]), table[::-1, ::2][ids[0]])
    assert_same_bits(qkv.position.learned(table, [6, 0]), table[[6, 0]])
    assert_same_bits(qkv.position.learned(table, range(2)), table[:2])


@needs_torch
def test_learned_of_tensors(rng: np.random.Generator) -> None:
    table = torch.from_numpy(rng.standard_normal((7, 5))).to(torch.bfloat16)
    ids = torch.tensor([[0, 6], [2, 2]])
    rows = qkv.position.learned(table, ids)
    assert torch.equal(rows, table[ids])
    assert rows.dtype == torch.bfloat16
    with pytest.raises(TypeError, match=r"^ids: a NumPy array, but table is a PyTorch tensor"):
        qkv.position.learned(table, ids.numpy())
    with pytest.raises(qkv.ValueError, match=r"^table: requires grad"):
        qkv.position.learned(table.requires_grad_(), ids)


def test_learned_errors() -> None:
    table = np.zeros((512, 4), np.float32)
    with pytest.raises(qkv.ValueError, match=r"^ids: the table has 512 positions, 0 to 511; got 512 at \[0, 1\]$"):
        qkv.position.learned(table, [0, 512])
    with pytest.raises(qkv.ValueError, match=r"^ids: the table has 512 positions, 0 to 511; got -1 at \[0, 0\]$"):
        qkv.position.learned(table, np.array([-1]))
    with pytest.raises(qkv.DtypeError, match=r"^ids: expected int32 or int64, got float64$"):
        qkv.position.learned(table, np.array([1.0]))
    with pytest.raises(qkv.ShapeError, match=r"^table: expected 2 axes \[size, dim\], got 1 in \[512\]$"):
        qkv.position.learned(table[:, 0], [1])
    with pytest.raises(TypeError, match=r"^table: expected a NumPy array"):
        qkv.position.learned([[1.0]], [0])


def published_slopes(n: int) -> list[float]:
    """As the authors' code has them."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return published_slopes(closest) + published_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 8, 12, 16, 31, 40, 71, 112])
def test_alibi_slopes(num_heads: int) -> None:
    slopes = qkv.position.alibi_slopes(num_heads, dtype=np.float64)
    np.testing.assert_allclose(slopes, published_slopes(num_heads), rtol=1e-14)
    assert_same_bits(qkv.position.alibi_slopes(num_heads), slopes.astype(np.float32))


def test_alibi_slopes_errors() -> None:
    with pytest.raises(qkv.ValueError, match=r"^num_heads: expected at least 1, got 0$"):
        qkv.position.alibi_slopes(0)
    with pytest.raises(qkv.ValueError, match=r"^num_heads: expected at least 1, got -3$"):
        qkv.position.alibi_slopes(-3)


def t5_attention() -> Any:
    from transformers.models.t5.modeling_t5 import T5Attention

    return T5Attention


@needs_torch
@needs_hf
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"), [(32, 128), (32, 20), (8, 20), (64, 1000), (33, 128), (16, 72), (320, 800), (4, 9)]
)
def test_t5_buckets_are_hugging_faces(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    relative = torch.cat([torch.arange(-3000, 3001), torch.tensor([-(2**31), 2**31, 10**6, -(10**6)])])
    expected = t5_attention()._relative_position_bucket(relative, bidirectional, num_buckets, max_distance)
    options: dict[str, Any] = {
        "bidirectional": bidirectional,
        "num_buckets": num_buckets,
        "max_distance": max_distance,
    }
    assert torch.equal(qkv.position.t5_bucket(relative, **options), expected)
    assert_same_bits(qkv.position.t5_bucket(relative.numpy(), **options), expected.numpy())
    assert qkv.position.t5_bucket(-17, **options) == int(expected[3000 - 17])


def test_t5_buckets_of_any_array() -> None:
    relative = np.arange(-12, 12).reshape(2, 3, 4)
    expected = [[[qkv.position.t5_bucket(int(d)) for d in row] for row in block] for block in relative]
    assert qkv.position.t5_bucket(relative).tolist() == expected
    turned = np.ascontiguousarray(relative.transpose(2, 0, 1)).transpose(1, 2, 0)[:, ::-1].astype(np.int32)
    assert qkv.position.t5_bucket(turned).tolist() == np.array(expected)[:, ::-1].tolist()
    assert qkv.position.t5_bucket(DLPackOnly(relative)).tolist() == expected
    assert qkv.position.t5_bucket(np.zeros((0, 3), np.int64)).shape == (0, 3)
    assert qkv.position.t5_bucket(np.array(-3)).tolist() == qkv.position.t5_bucket(-3)
    assert qkv.position.t5_bucket(np.int64(5)) == qkv.position.t5_bucket(5)


@needs_torch
@needs_hf
@pytest.mark.parametrize("decoder", [False, True])
def test_t5_bias_is_hugging_faces(decoder: bool) -> None:
    from transformers import T5Config

    config = T5Config(num_heads=3, d_model=12, d_kv=4, relative_attention_num_buckets=16, is_decoder=decoder)
    torch.manual_seed(0)
    attention = t5_attention()(config, has_relative_attention_bias=True)
    table = attention.relative_attention_bias.weight.detach()
    for offset in (0, 30):
        expected = attention.compute_bias(5, 40, past_seen_tokens=offset).detach()[0]
        bias = qkv.position.t5_bias(table, 5, 40, bidirectional=not decoder, query_offset=offset)
        assert torch.equal(bias, expected)


@pytest.mark.parametrize("dtype", REAL)
def test_t5_bias_adds_to_logits(dtype: str, rng: np.random.Generator) -> None:
    table = stored(rng.standard_normal((32, 4)), dtype)
    bias = qkv.position.t5_bias(table, 3, 9, query_offset=6)
    assert bias.shape == (4, 3, 9)
    q, k = (stored(rng.standard_normal((1, 4, n, 8)), dtype) for n in (3, 9))
    _, logits = qkv.attention(q, k, k, bias=bias, scale=0.0, return_logits="masked")
    np.testing.assert_array_equal(logits[0].astype(np.float64), bias.astype(np.float64))


def test_t5_errors() -> None:
    table = np.zeros((32, 4), np.float32)
    with pytest.raises(qkv.ValueError, match=r"^num_buckets: expected at least 4, got 3$"):
        qkv.position.t5_bucket(np.zeros(0, np.int64), num_buckets=3)
    with pytest.raises(qkv.ValueError, match=r"^max_distance: expected more than 8, which have buckets of their own"):
        qkv.position.t5_bias(table, 2, 2, max_distance=8)
    with pytest.raises(qkv.DtypeError, match=r"^relative: dtype int8 is not supported, expected int32 or int64$"):
        qkv.position.t5_bucket(np.zeros(2, np.int8))
    with pytest.raises(TypeError, match=r"^relative: expected an int, got list"):
        qkv.position.t5_bucket([1, 2])
    with pytest.raises(TypeError, match=r"^bidirectional: expected a bool, got int 1"):
        qkv.position.t5_bias(table, 2, 2, bidirectional=1)  # type: ignore[call-overload]
    with pytest.raises(qkv.ValueError, match=r"^kv_len: expected at least 0, got -2$"):
        qkv.position.t5_bias(table, 2, -2)
