"""Every option against the same formula in PyTorch double: a seeded grid, and random combinations."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from option_cases import OPTIONS, B, D, H, N, S, filled
from support import assert_close

import qkv

pytestmark = pytest.mark.needs("torch")

STATS = ("max_raw", "max_logit", "max_weight", "entropy", "key_weight")


def largest(array: Any) -> float:
    return float(np.abs(np.asarray(array)).max(initial=1))


def assert_agrees(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> None:
    """All results of one call, each logits stage included, against the oracle."""
    expected = oracle.attention(q, k, v, **options)
    size = max(largest(v), largest(expected.logits["scaled"]))
    keys = {"stats_keys": options.get("stats_keys")}
    options = {name: value for name, value in options.items() if name != "stats_keys"}
    for stage in ("scaled", "capped", "masked"):
        out, lse, logits, weights, stats = qkv.attention(
            q, k, v, return_lse=True, return_logits=stage, return_weights=True, return_stats=True, **keys, **options
        )
        assert_close(logits, expected.logits[stage], size=size)
    assert_close(out, expected.out, size=size)
    assert_close(lse, expected.lse, size=size)
    assert_close(weights, expected.weights, size=size)
    assert np.all(weights[~expected.visible.numpy()] == 0)
    for name in STATS:
        assert_close(getattr(stats, name), expected.stats[name], size=size * np.log(2 + k.shape[2]))
    assert_max_key(stats, expected, options)
    np.testing.assert_array_equal(qkv.attention(q, k, v, **options), out)


def assert_max_key(stats: Any, expected: Any, options: dict[str, Any]) -> None:
    """The key of the largest logit; in ties within rounding any of them, but exact ones take the lowest."""
    logits = expected.logits["masked"].numpy()
    empty = ~expected.visible.numpy().any(-1)
    assert np.all(stats.max_key[empty] == -1)
    if logits.shape[-1]:
        chosen = np.take_along_axis(logits, np.maximum(stats.max_key, 0)[..., None], -1)[..., 0]
        assert_close(stats.max_logit[~empty], chosen[~empty], size=largest(chosen[~empty]))
    if options.get("scale") == 0 and not {"bias", "alibi_slopes"} & options.keys():
        np.testing.assert_array_equal(stats.max_key, expected.stats["max_key"])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_option(name: str, dtype: Any, kv_heads: int, target: str, rng: np.random.Generator) -> None:
    q = rng.standard_normal((B, H, N, D)).astype(dtype)
    k = rng.standard_normal((B, kv_heads, S, D)).astype(dtype)
    v = rng.standard_normal((B, kv_heads, S, 6)).astype(dtype)
    assert_agrees(q, k, v, {**filled(OPTIONS[name], dtype, rng), "stats_keys": [0, 7]})


@pytest.mark.parametrize(
    ("n", "s", "d", "d_v"),
    [(1, 1, 1, 1), (1, 16, 64, 64), (33, 33, 3, 257), (7, 600, 40, 40), (70, 65, 64, 64), (5, 2, 16, 8), (0, 4, 8, 8),
     (4, 0, 8, 8), (4, 5, 8, 0), (2, 40, 1024, 16)],
)  # fmt: skip
def test_shape(n: int, s: int, d: int, d_v: int, target: str, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in [(1, 2, n, d), (1, 1, s, d), (1, 1, s, d_v)])
    assert_agrees(q, k, v, {"causal": True})


@st.composite
def calls(draw: st.DrawFn) -> tuple[int, tuple[int, ...], dict[str, Any]]:
    """A seed, the sizes, and which options, with values that do not depend on the arrays."""
    batch, group, kv_heads = draw(st.tuples(*[st.integers(1, 3)] * 3))
    n, s, d, d_v = draw(st.tuples(st.integers(0, 40), st.integers(0, 70), st.integers(1, 20), st.integers(0, 20)))
    optional_bound = st.none() | st.integers(0, 12)
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.tuples(optional_bound, optional_bound)),
        "query_offset": draw(
            st.none() | st.integers(-30, 80) | st.lists(st.integers(-9, 60), min_size=batch, max_size=batch)
        ),
        "kv_lens": draw(st.none() | st.lists(st.integers(0, s), min_size=batch, max_size=batch)),
        "scale": draw(st.none() | st.sampled_from([0.0, -0.25, 0.5, 2.0])),
        "softcap": draw(st.sampled_from([0.0, 0.5, 30.0])),
        "mask": draw(st.none() | st.sampled_from([0.1, 0.9])),
        "bias": draw(st.booleans()),
        "sinks": draw(st.booleans()),
        "alibi_slopes": draw(st.booleans()),
    }
    return draw(st.integers(0, 2**32 - 1)), (batch, group, kv_heads, n, s, d, d_v), options


@given(call=calls(), dtype=st.sampled_from([np.float32, np.float64]))
@settings(max_examples=150, deadline=None, print_blob=True)
def test_combination(call: tuple[int, tuple[int, ...], dict[str, Any]], dtype: Any) -> None:
    seed, (batch, group, kv_heads, n, s, d, d_v), options = call
    rng = np.random.default_rng(seed)
    heads = group * kv_heads
    q, k, v = (
        rng.standard_normal(shape).astype(dtype)
        for shape in [(batch, heads, n, d), (batch, kv_heads, s, d), (batch, kv_heads, s, d_v)]
    )
    made = dict(options)
    if options["mask"] is not None:
        made["mask"] = rng.random((batch, 1, n, s)) < options["mask"]
    made["bias"] = rng.standard_normal((heads, n, s)).astype(dtype) if options["bias"] else None
    made["sinks"] = rng.standard_normal(heads).astype(dtype) if options["sinks"] else None
    made["alibi_slopes"] = rng.random((batch, heads)).astype(dtype) if options["alibi_slopes"] else None
    assert_agrees(q, k, v, made)
