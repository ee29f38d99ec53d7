"""The query row, and the keys and values that fill the caches of a case of decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkv_bench.cases import Array
from qkv_bench.decode_cases import DecodeCase
from qkv_bench.dtypes import FLOAT32, INT8
from qkv_bench.storage import stored

BLOCK = 1 << 20


@dataclass
class Operands:
    """The query row of each head, and keys and values that fill a cache."""

    q: Array
    k: Array
    v: Array


def make_operands(case: DecodeCase) -> Operands:
    """Normal numbers, a block of them over and over: to draw gigabytes would take longer than to measure them."""
    rng = np.random.default_rng(1)
    dtype = FLOAT32 if case.dtype == INT8 else case.dtype  # the cache makes int8 of float32
    block = stored(rng.standard_normal(BLOCK, dtype=np.float32), dtype)
    shape = (1, case.kv_heads, case.kv_len, case.dim)
    q = stored(rng.standard_normal((1, case.heads, 1, case.dim), dtype=np.float32), dtype)
    return Operands(q, np.resize(block, shape), np.resize(block[::-1], shape))
