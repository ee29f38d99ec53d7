"""Caches with positions="cache": keys are kept as they came, and turned by their places among those still seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import assert_close, assert_same_bits, optional, stored

import qkv
from qkv.position import Rope

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")

BASE = 300.0
DTYPES = ["float32", "float64", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes")), "int8"]


def rotated(row: np.ndarray, position: int, layout: str = "half") -> np.ndarray:
    """The article's formula, in double."""
    pairs = row.shape[-1] // 2
    angle = position * BASE ** (-2 * np.arange(pairs) / row.shape[-1])
    first = np.arange(pairs) if layout == "half" else 2 * np.arange(pairs)
    second = first + (pairs if layout == "half" else 1)
    turned = row.astype(np.float64)
    x, y = turned[..., first], turned[..., second]
    turned[..., first], turned[..., second] = (
        x * np.cos(angle) - y * np.sin(angle),
        y * np.cos(angle) + x * np.sin(angle),
    )
    return turned


def kept_keys(position: int, window: int, sinks: int) -> list[int]:
    return [j for j in range(position + 1) if j < sinks or j > position - window]


def oracle(q: np.ndarray, k: np.ndarray, v: np.ndarray, position: int, kept: list[int], layout: str) -> np.ndarray:
    """One row of every head: the kept keys gathered and numbered from 0, the row at the last of them."""
    group = q.shape[0] // k.shape[0]
    assert kept[-1] == position
    out = np.empty((q.shape[0], v.shape[-1]))
    for h in range(q.shape[0]):
        keys = np.stack([rotated(k[h // group, j], place, layout) for place, j in enumerate(kept)])
        logits = keys @ rotated(q[h], len(kept) - 1, layout) / np.sqrt(q.shape[-1])
        weights = np.exp(logits - logits.max())
        out[h] = weights / weights.sum() @ v[h // group, kept].astype(np.float64)
    return out


def as_kept(array: np.ndarray, dtype: str) -> np.ndarray:
    """What a cache of this dtype makes of numbers, in double."""
    if dtype != "int8":
        return stored(array, dtype).astype(np.float64)
    scale = (np.abs(array).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    return np.rint(array / scale).astype(np.float32) * scale.astype(np.float64)


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def test_after_four_of_eight_are_dropped() -> None:
    """A ring of 8 that has dropped its first 4 keys: worked by hand, with absolute positions beside it."""
    rng = np.random.default_rng(36)
    k, v = normal(rng, 1, 1, 12, 4), normal(rng, 1, 1, 12, 4)
    q = normal(rng, 1, 1, 1, 4)
    caches = {}
    for positions in ("absolute", "cache"):
        cache = qkv.KVCache(1, 1, 4, 8, window=8, rope=Rope(4, base=BASE), positions=positions)
        cache.append(k[:, :, :8], v[:, :, :8])
        cache.append(k[:, :, 8:], v[:, :, 8:])
        assert cache.lengths == (12,)
        caches[positions] = qkv.attention(q, cache)
    # Keys 4 to 11 at 0 to 7 and the row at 7; frequencies 1 and 300^-1/2.
    logits = []
    for place, j in enumerate(range(4, 12)):
        dot = 0.0
        for pair, frequency in enumerate((1.0, BASE**-0.5)):
            distance = (7 - place) * frequency
            a, b = q[0, 0, 0, [pair, pair + 2]].astype(float)
            c, d = k[0, 0, j, [pair, pair + 2]].astype(float)
            dot += (a * c + b * d) * np.cos(distance) - (a * d - b * c) * np.sin(-distance)
        logits.append(dot / 2)
    weights = np.exp(logits) / np.exp(logits).sum()
    expected = (weights @ v[0, 0, 4:].astype(float))[None, None, None]
    # Going on counting and counting anew are the same distances: those of the row.
    assert_close(caches["cache"], expected)
    assert_close(caches["absolute"], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("seed", range(3))
def test_a_ring_is_the_oracle(dtype: str, layout: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    batch, kv_heads, group = (int(rng.integers(1, 4)) for _ in range(3))
    dim, value_dim = 2 * int(rng.integers(1, 20)), int(rng.integers(1, 20))
    window, sinks, spare = int(rng.integers(1, 12)), int(rng.integers(0, 5)), int(rng.integers(0, 6))
    wide = "float64" if dtype == "float64" else "float32"
    cache = qkv.KVCache(batch, kv_heads, dim, window + sinks + spare, value_dim=value_dim, dtype=dtype, window=window,
                        num_sinks=sinks, rope=Rope(dim, base=BASE, layout=layout), positions="cache")  # fmt: skip
    total = 40
    q = normal(rng, batch, kv_heads * group, total, dim, dtype=wide)
    k, v = (
        normal(rng, batch, kv_heads, total, dim, dtype=wide),
        normal(rng, batch, kv_heads, total, value_dim, dtype=wide),
    )
    kept_k, kept_v = as_kept(k, dtype), as_kept(v, dtype)
    at = np.zeros(batch, int)
    while at.min() < total - spare - 1:
        # As many tokens as a ring takes between two calls, another number for each sequence.
        counts = [int(rng.integers(1, spare + 2)) if length < total - spare - 1 else 0 for length in at]
        n = max(counts)
        rows = np.minimum(at[:, None] + np.arange(n), total - 1)
        take = lambda x, rows=rows: np.take_along_axis(x, rows[:, None, :, None], 2)  # noqa: E731
        cache.append(take(k), take(v), counts)
        at += counts
        last = np.stack([q[b, :, at[b] - 1 : at[b]] for b in range(batch)])
        got = qkv.attention(last, cache)
        slow = qkv.reference.attention(last, cache)
        for b in range(batch):
            position = int(at[b]) - 1
            keys = kept_keys(position, window, sinks)
            expected = oracle(last[b, :, 0], kept_k[b], kept_v[b], position, keys, layout)
            assert_close(got[b, :, 0], expected, size=8)
            assert_close(slow[b, :, 0], expected, size=8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_is_token_by_token(dtype: str) -> None:
    rng = np.random.default_rng(4)
    wide = "float64" if dtype == "float64" else "float32"
    q, k, v = (normal(rng, 2, heads, 50, 16, dtype=wide) for heads in (4, 2, 2))
    rope = Rope(16, base=BASE)
    whole = qkv.KVCache(2, 2, 16, 50, dtype=dtype, window=9, num_sinks=2, rope=rope, positions="cache")
    whole.append(k, v)
    expected = qkv.attention(q, whole, causal=True, return_stats=True, return_weights=True)
    tight = qkv.KVCache(2, 2, 16, 11, dtype=dtype, window=9, num_sinks=2, rope=rope, positions="cache")
    for i in range(50):
        row = slice(i, i + 1)
        tight.append(k[:, :, row], v[:, :, row])
        out, weights, stats = qkv.attention(q[:, :, row], tight, return_stats=True, return_weights=True)
        assert_same_bits(out, expected[0][:, :, row])
        assert_same_bits(weights[..., : i + 1], expected[1][:, :, row, : i + 1])
        assert_same_bits(stats.max_key, expected[2].max_key[:, :, row])
        assert_same_bits(stats.entropy, expected[2].entropy[:, :, row])


@pytest.mark.parametrize("make", ["slots", "pages"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_before_a_key_is_left_the_bits_are_those_of_absolute_positions(make: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (normal(rng, 1, heads, 30, 16, dtype=dtype) for heads in (4, 2, 2))
    rope = Rope(16, base=BASE)
    results = []
    for positions in ("absolute", "cache"):
        cache: Any
        if make == "slots":
            cache = qkv.KVCache(1, 2, 16, 40, dtype=dtype, rope=rope, positions=positions)
        else:
            cache = qkv.PagedKVCache(1, 2, 16, 8, page_size=8, dtype=dtype, rope=rope, positions=positions)
        cache.append(k, v)
        results.append(qkv.attention(q, cache, causal=True))
    assert_same_bits(results[0], results[1])


def test_pages_go_by_the_window_of_the_call() -> None:
    rng = np.random.default_rng(6)
    q, k, v = (normal(rng, 1, heads, 30, 16) for heads in (4, 2, 2))
    cache = qkv.PagedKVCache(1, 2, 16, 8, page_size=4, rope=Rope(16, base=BASE), positions="cache")
    cache.append(k, v)
    got = qkv.attention(q[:, :, 29:], cache, window=(6, None))
    expected = oracle(q[0, :, 29], k[0], v[0], 29, list(range(23, 30)), "half")
    assert_close(got[0, :, 0], expected)


def test_dynamic_scaling_settles_with_the_window() -> None:
    """Frequencies go by the number of places, which a full ring no longer changes: late rows are as early ones."""
    rng = np.random.default_rng(7)
    k, v = np.tile(normal(rng, 1, 2, 1, 16), (1, 1, 90, 1)), normal(rng, 1, 2, 90, 16)
    q = normal(rng, 1, 2, 1, 16)
    rope = Rope(16, scaling={"rope_type": "dynamic", "factor": 4.0}, max_position=6)
    lse = []
    cache = qkv.KVCache(1, 2, 16, 12, window=10, num_sinks=2, rope=rope, positions="cache")
    for i in range(90):
        cache.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        lse.append(qkv.attention(q, cache, return_lse=True)[1])
    for i in (12, 40, 89):
        assert_close(lse[i], lse[11].astype(np.float64))
    assert np.abs(lse[11] - lse[3]).max() > 0.01


@needs_torch
def test_pytorch_tensors() -> None:
    q, k, v = (torch.from_numpy(normal(np.random.default_rng(h), 1, h, 40, 16)) for h in (4, 2, 2))
    cache = qkv.KVCache(1, 2, 16, 40, dtype=torch.bfloat16, window=8, rope=Rope(16, base=BASE), positions="cache")
    cache.append(k, v)
    got = qkv.attention(q[:, :, 39:].contiguous(), cache)
    kept = as_kept(k.numpy()[0], "bfloat16"), as_kept(v.numpy()[0], "bfloat16")
    expected = oracle(q.numpy()[0, :, 39], *kept, 39, list(range(32, 40)), "half")
    assert_close(got[0, :, 0].numpy(), expected)


def test_it_is_a_property_and_files_bring_it_back(tmp_path: Path) -> None:
    path = tmp_path / "cache.safetensors"
    rng = np.random.default_rng(8)
    rope = Rope(16, base=BASE)
    caches: list[Any] = [
        qkv.KVCache(1, 2, 16, 20, window=8, num_sinks=2, rope=rope, positions="cache"),
        qkv.PagedKVCache(1, 2, 16, 8, page_size=4, rope=rope, positions="cache"),
    ]
    for cache in caches:
        cache.append(normal(rng, 1, 2, 20, 16), normal(rng, 1, 2, 20, 16))
        assert cache.positions == "cache"
        assert ", positions='cache'" in repr(cache)
        with pytest.raises(AttributeError):
            cache.positions = "absolute"
        cache.save(path)
        loaded = type(cache).load(path)
        assert repr(loaded) == repr(cache)
        q = normal(rng, 1, 4, 3, 16)
        assert_same_bits(qkv.attention(q, loaded, causal=True), qkv.attention(q, cache, causal=True))
        data = path.read_bytes()
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        assert metadata["positions"] == "cache"
    plain = qkv.KVCache(1, 2, 16, 20, rope=rope)
    assert plain.positions == "absolute"
    assert "positions" not in repr(plain)


def test_errors() -> None:
    rope = Rope(16)
    makers: list[Any] = [
        lambda **options: qkv.KVCache(1, 2, 16, 20, **options),
        lambda **options: qkv.PagedKVCache(1, 2, 16, 8, **options),
    ]
    for make in makers:
        with pytest.raises(qkv.ValueError, match=r'positions: expected "absolute" or "cache", got "relative"'):
            make(rope=rope, positions="relative")
        with pytest.raises(TypeError, match="positions: expected a str"):
            make(rope=rope, positions=None)
        with pytest.raises(qkv.ValueError, match=r"positions: places in the cache are what a rope turns .* not given"):
            make(positions="cache")
        cache = make(rope=rope, positions="cache")
        cache.append(np.ones((1, 2, 9, 16), np.float32), np.ones((1, 2, 9, 16), np.float32))
        q = np.ones((1, 4, 2, 16), np.float32)
        with pytest.raises(qkv.ValueError, match="alibi_slopes: given beside positions within the cache"):
            qkv.attention(q, cache, alibi_slopes=np.ones(4, np.float32))
        with pytest.raises(qkv.ValueError, match=r"logits: before masks .* the row at position 8 of batch 0 has left"):
            qkv.attention(q, cache, window=(3, 0), return_logits="scaled")
        with pytest.raises(qkv.ValueError, match="alibi_slopes"):
            qkv.reference.attention(q, cache, alibi_slopes=np.ones(4, np.float32))
