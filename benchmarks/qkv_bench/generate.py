"""Generates tokens one at a time with one layer of attention: with a cache, and computing all rows anew each time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import qkv
from qkv_bench import cache_store
from qkv_bench.cache_store import CacheStore, Shape
from qkv_bench.cases import Array
from qkv_bench.clock import Task, take_turns
from qkv_bench.dtypes import FLOAT32, TOLERANCES
from qkv_bench.progress import Progress
from qkv_bench.runners import UnableError
from qkv_bench.storage import relative_difference

LENGTHS, QUICK_LENGTHS = (128, 512, 2048, 8192), (128, 512, 2048)
HEADS, DIM = 8, 64
#: Tokens that one sample appends: the length that a row stands for is that of the last.
TOKENS = 32


def measure(quick: bool) -> list[dict[str, Any]]:
    """A row for each length: CPU seconds for one token with one thread, "cached" and "recomputed", one a round."""
    lengths = QUICK_LENGTHS if quick else LENGTHS
    progress = Progress(len(lengths))
    threads_before = qkv.num_threads()
    qkv.set_num_threads(1)
    rows = []
    for length in lengths:
        progress.step(f"generating at {length} tokens")
        rows.append(_measure_length(length, 3 if quick else 5))
    qkv.set_num_threads(threads_before)
    progress.clear()
    return rows


def _measure_length(length: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, HEADS, length, DIM), dtype=np.float32) for _ in range(3))
    check_same(q, k, v)
    task = Task(lambda: qkv.attention(q, k, v, causal=True))
    task.calibrate()
    cached: list[float] = []
    steps: list[Callable[[], object]] = [lambda: cached.append(seconds_cached(q, k, v)), task.sample]
    take_turns(steps, rounds)
    return {"length": length, "cached": cached, "recomputed": task.samples.cpu}


def prefilled(k: Array, v: Array, tokens: int) -> CacheStore:
    """A cache that lacks the last tokens, with room for them."""
    _, heads, length, dim = k.shape
    store = cache_store.make(Shape(heads, dim, length), FLOAT32)
    store.append(k[:, :, : length - tokens], v[:, :, : length - tokens])
    return store


def generate(store: CacheStore, q: Array, k: Array, v: Array, tokens: int) -> Array:
    """The last tokens, one after the other; the row of the last one."""
    length = k.shape[2]
    out = q
    for i in range(length - tokens, length):
        store.append(k[:, :, i : i + 1], v[:, :, i : i + 1])
        out = store.attend(q[:, :, i : i + 1])
    return out


def seconds_cached(q: Array, k: Array, v: Array) -> float:
    """CPU time of one token; what fills the cache before is not counted."""
    store = prefilled(k, v, TOKENS)
    begin = time.process_time()
    generate(store, q, k, v, TOKENS)
    return (time.process_time() - begin) / TOKENS


def check_same(q: Array, k: Array, v: Array) -> None:
    """Raises UnableError unless both ways give the last token the same row."""
    last = generate(prefilled(k, v, 2), q, k, v, 2)
    difference = relative_difference(last, qkv.attention(q, k, v, causal=True)[:, :, -1:])
    if not difference <= TOLERANCES[FLOAT32]:
        raise UnableError(f"a cache gives another row than all rows at once: it differs by {difference:.1e}")
