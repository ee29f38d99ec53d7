"""Dropout: the weights that it takes, by the definition in docs/op/dropout.md written once more in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import assert_same_bits, optional, stored

import qkv

torch: Any = optional("torch")
ml_dtypes: Any = optional("ml_dtypes")

U32, U64 = np.uint32, np.uint64
LOW = U64(0xFFFFFFFF)
MULTIPLIERS = U64(0xD2511F53), U64(0xCD9E8D57)
STEPS = 0x9E3779B9, 0xBB67AE85


def philox(counter: Any, key: Any, rounds: int) -> list[np.ndarray]:
    """Philox4x32 of arrays of 32-bit numbers."""
    x = [np.asarray(c, U64) for c in counter]
    k = [np.asarray(c, U64) for c in key]
    for _ in range(rounds):
        first, second = MULTIPLIERS[0] * x[0], MULTIPLIERS[1] * x[2]
        x = [second >> U64(32) ^ x[1] ^ k[0], second & LOW, first >> U64(32) ^ x[3] ^ k[1], first & LOW]
        k = [(k[i] + U64(STEPS[i])) & LOW for i in range(2)]
    return x


def halves(number: int) -> tuple[int, int]:
    number %= 2**64
    return number & 0xFFFFFFFF, number >> 32


def kept(seed: int, p: float, batch: int, heads: int, positions: Any, keys: int) -> np.ndarray:
    """[batch, heads, rows, keys], True where a weight is kept; positions is [batch, rows]."""
    result = np.zeros((batch, heads, len(positions[0]), keys), bool)
    j = np.arange(keys)
    word, i, c = j // 64, j % 64 // 16, j % 16
    threshold = int(np.floor(p * 2.0**32 + 0.5))
    for b, h, row in np.ndindex(result.shape[:3]):
        r = philox((*halves(int(positions[b][row])), h, b), halves(seed), 10)
        counters = 16 * word + c
        x = philox((counters & 0xFFFFFFFF, counters >> 32, r[2], r[3]), (r[0], r[1]), 7)
        result[b, h, row] = np.choose(i, x) >= threshold
    return result


def expected_out(weights: np.ndarray, mask: np.ndarray, p: float, v: np.ndarray) -> np.ndarray:
    group = weights.shape[1] // v.shape[1]
    values = np.repeat(v.astype(np.float64), group, axis=1)
    return (weights.astype(np.float64) * mask / (1 - p)) @ values


def inputs(rng: np.random.Generator, rows: int = 20, keys: int = 150) -> list[np.ndarray]:
    shapes = (2, 4, rows, 16), (2, 2, keys, 16), (2, 2, keys, 24)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_philox_gives_known_answers() -> None:
    assert [hex(int(x)) for x in philox((0, 0, 0, 0), (0, 0), 10)] == [
        "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8",
    ]  # fmt: skip
    pi = philox((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), 7)
    assert [hex(int(x)) for x in pi] == ["0x4dfccaba", "0x190a87f0", "0xc47362ba", "0xb6b5242a"]


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_takes_the_weights_of_the_definition(p: float, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    seed = int(rng.integers(2**63)) * 2 + 1
    options: dict[str, Any] = {"causal": True, "query_offset": [130, -4], "return_weights": True}
    out, weights = qkv.attention(q, k, v, dropout=p, seed=seed, **options)
    assert_same_bits(weights, qkv.attention(q, k, v, **options)[1])
    positions = np.arange(20) + np.array([[130], [-4]])
    expected = expected_out(weights, kept(seed, p, 2, 4, positions, 150), p, v)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 / (1 - p))


def test_in_double(rng: np.random.Generator) -> None:
    q, k, v = (x.astype(np.float64) for x in inputs(rng))
    out, weights = qkv.attention(q, k, v, dropout=0.3, seed=2**64 - 1, return_weights=True)
    positions = np.broadcast_to(np.arange(20) + 130, (2, 20))
    expected = expected_out(weights, kept(2**64 - 1, 0.3, 2, 4, positions, 150), 0.3, v)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))])
def test_in_16_bits(dtype: str, rng: np.random.Generator) -> None:
    q, k, v = (stored(x, dtype) for x in inputs(rng))
    out, weights = qkv.attention(q, k, v, dropout=0.3, seed=3, return_weights=True)
    positions = np.broadcast_to(np.arange(20) + 130, (2, 20))
    expected = expected_out(weights, kept(3, 0.3, 2, 4, positions, 150), 0.3, v)
    assert out.dtype == q.dtype
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=2e-3 if dtype == "float16" else 2e-2)


def test_mean_over_seeds_is_no_dropout(rng: np.random.Generator) -> None:
    q, k, v = inputs(rng, rows=6, keys=40)
    seeds, p = 400, 0.4
    plain, weights = qkv.attention(q, k, v, return_weights=True)
    mean = np.mean([qkv.attention(q, k, v, dropout=p, seed=s).astype(np.float64) for s in range(seeds)], axis=0)
    # Of one weight w: w / (1 - p) with probability 1 - p.
    variance = (weights.astype(np.float64) ** 2 * p / (1 - p)) @ np.repeat(v.astype(np.float64) ** 2, 2, axis=1)
    assert np.max(np.abs(mean - plain) / np.sqrt(variance / seeds)) < 6


def test_segments_count_as_batches(rng: np.random.Generator) -> None:
    q, k, v = inputs(rng, rows=30, keys=30)
    dense = qkv.attention(q, k, v, causal=True, dropout=0.5, seed=11)
    flat = [x.transpose(0, 2, 1, 3).reshape(60, x.shape[1], -1) for x in (q, k, v)]
    ragged = qkv.attention_varlen(*flat, [0, 30, 60], [0, 30, 60], causal=True, dropout=0.5, seed=11)
    assert_same_bits(ragged.reshape(2, 30, 4, 24).transpose(0, 2, 1, 3), dense)


@pytest.mark.parametrize("paged", [False, True])
def test_caches_have_it(paged: bool, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng, rows=5, keys=70)
    if paged:
        cache: Any = qkv.PagedKVCache(2, 2, 16, num_pages=20, page_size=16, value_dim=24)
    else:
        cache = qkv.KVCache(2, 2, 16, 80, value_dim=24)
    cache.append(k, v)
    options: dict[str, Any] = {"causal": True, "dropout": 0.25, "seed": 5}
    assert_same_bits(qkv.attention(q, cache, **options), qkv.attention(q, k, v, **options))


def test_ends_of_the_probability(rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    assert_same_bits(qkv.attention(q, k, v, dropout=0, seed=1), qkv.attention(q, k, v))
    assert not qkv.attention(q, k, v, dropout=1.0, seed=1).any()
    k[0, 0, 3] = np.nan
    assert np.isnan(qkv.attention(q, k, v, dropout=1.0, seed=1)[0, :2]).all()


@pytest.mark.needs("torch")
def test_from_torch(rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    out = qkv.attention(*(torch.from_numpy(x) for x in (q, k, v)), dropout=0.5, seed=6)
    assert isinstance(out, torch.Tensor)
    assert_same_bits(out.numpy(), qkv.attention(q, k, v, dropout=0.5, seed=6))
