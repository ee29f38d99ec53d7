"""What it costs to append one token to a cache: 8 heads of 128, from C++ and from NumPy; with rotary positions, too."""

from __future__ import annotations

import time

import numpy as np

from qkv_bench import cache_store, native
from qkv_bench.cache_store import Shape
from qkv_bench.dtypes import FLOAT32

KV_HEADS, DIM, TOKENS = 8, 128, 1024


#: What is timed from C++, one after the other in every round: arguments of native.append_call.
KINDS: dict[str, dict[str, bool]] = {
    "c++": {},
    "c++, rope": {"rope": True},
    "c++, bfloat16": {"bfloat16": True},
    "c++, bfloat16, rope": {"bfloat16": True, "rope": True},
    "c++, ring": {"ring": True},
    "c++, ring, rope": {"ring": True, "rope": True},
    "c++, ring, bfloat16": {"ring": True, "bfloat16": True},
    "c++, ring, bfloat16, rope": {"ring": True, "bfloat16": True, "rope": True},
}


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of CPU time of a call, one entry a round; without those from C++ where the library can not tell."""
    times: dict[str, list[float]] = {"numpy": []}
    appended(TOKENS)  # memory that was never touched before is the system's time
    for _ in range(rounds):
        times["numpy"].append(appended(TOKENS))
        for name, kind in KINDS.items():
            seconds = native.append_call(TOKENS, **kind)
            if seconds is not None:
                times.setdefault(name, []).append(seconds)
    return times


def appended(tokens: int) -> float:
    """Seconds of CPU time of one of so many calls, which fill a new cache."""
    store = cache_store.make(Shape(KV_HEADS, DIM, tokens), FLOAT32)
    row = np.full((1, KV_HEADS, 1, DIM), 0.5, np.float32)
    append = store.append
    begin = time.process_time()
    for _ in range(tokens):
        append(row, row)
    return (time.process_time() - begin) / tokens
