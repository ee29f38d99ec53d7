"""One small case of each kind that the benchmarks time, and what qkv makes of it."""

from __future__ import annotations

import numpy as np

from qkv_bench.cases import Case, make_inputs
from qkv_bench.runners import QkvRunner

KINDS = [
    Case((2, 3, 16, 8)),
    Case((2, 3, 16, 8), causal=True),
    Case((2, 3, 16, 8), mask="padding"),
    Case((2, 3, 16, 8), kv_lens=8),
    Case((2, 3, 16, 8), mask="random"),
    Case((2, 3, 16, 8), bias=True),
    Case((2, 3, 16, 8), causal=True, window=(3, 0)),
]


def name_of(case: Case) -> str:
    """For the ids of pytest."""
    return case.name


def ours(case: Case) -> np.ndarray:
    """The output of qkv, on one thread."""
    return QkvRunner().make(case, make_inputs(case), 1).result()
