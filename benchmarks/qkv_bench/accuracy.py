"""How far float32 results are from the reference in double, as one number for a whole call."""

from __future__ import annotations

import numpy as np

import qkv
from qkv_bench.cases import Array, find_case, make_inputs

CASES = ("1x8x2048x64-full", "1x8x2048x128-full")


def measure(cases: tuple[str, ...] = CASES) -> dict[str, float]:
    """{case: relative Frobenius error}. The reference takes its time: seconds."""
    errors = {}
    for name in cases:
        inputs = make_inputs(find_case(name))
        exact = qkv.reference.attention(*(array.astype(np.float64) for array in (inputs.q, inputs.k, inputs.v)))
        errors[name] = relative_error(qkv.attention(inputs.q, inputs.k, inputs.v), exact)
    return errors


def relative_error(result: Array, exact: Array) -> float:
    """||result - exact|| / ||exact||, both norms over all elements."""
    return float(np.linalg.norm((result.astype(np.float64) - exact).ravel()) / np.linalg.norm(exact.ravel()))
