"""The gradients that are timed are those of the case."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import qkv
from qkv_bench import gradient_runners
from qkv_bench.cases import OPERATIONS, Case, make_inputs
from qkv_bench.gradient_runners import QkvGradients, joined

SMALL = Case((2, 3, 9, 8), causal=True, direction="backward")


@pytest.fixture(autouse=True)
def _threads():
    before = qkv.num_threads()
    yield
    qkv.set_num_threads(before)


def gradients_by_hand(case: Case) -> np.ndarray:
    """In double, as anybody would write it."""
    inputs = make_inputs(case)
    q, k, v, grad = (array.astype(np.float64) for array in (inputs.q, inputs.k, inputs.v, inputs.grad))
    n, dim = case.shape[2:]
    logits = q @ k.transpose(0, 1, 3, 2) / np.sqrt(dim) + (0 if inputs.bias is None else inputs.bias)
    weights = np.exp(logits) * (np.tri(n) if case.causal else 1)
    weights /= weights.sum(-1, keepdims=True)
    slopes = grad @ v.transpose(0, 1, 3, 2)
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdims=True))
    found = [
        slopes @ k / np.sqrt(dim),
        slopes.transpose(0, 1, 3, 2) @ q / np.sqrt(dim),
        weights.transpose(0, 1, 3, 2) @ grad,
    ]
    if case.head_bias:
        found.append(slopes.sum(0, keepdims=True))
    return joined(found)


@pytest.mark.parametrize("direction", ["backward", "both"])
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"head_bias": True}], ids=["causal", "full", "bias"])
def test_qkv_computes_what_the_case_says(direction: str, options: dict[str, bool]) -> None:
    case = dataclasses.replace(SMALL, direction=direction, **options)
    result = QkvGradients().make(case, make_inputs(case), 1).result()
    np.testing.assert_allclose(result, gradients_by_hand(case), atol=1e-5)


def test_dropout_is_drawn() -> None:
    without = QkvGradients().make(SMALL, make_inputs(SMALL), 1).result()
    case = dataclasses.replace(SMALL, dropout=0.5)
    assert np.abs(QkvGradients().make(case, make_inputs(case), 1).result() - without).max() > 0.1


def test_work_is_counted_by_products() -> None:
    forward = dataclasses.replace(SMALL, direction="forward").visible_operations
    both = dataclasses.replace(SMALL, direction="both").visible_operations
    assert 2 * SMALL.visible_operations == 5 * forward
    assert both == forward + SMALL.visible_operations
    assert OPERATIONS["both"] == OPERATIONS["forward"] + OPERATIONS["backward"]


def test_beside_16_bits_stands_float32() -> None:
    found, missing = gradient_runners.find_gradient_runners(peers=False, dtype="bfloat16")
    assert [runner.name for runner in found] == ["qkv", "qkv float32"]
    assert missing == {}
    case = dataclasses.replace(SMALL, dtype="bfloat16")
    results = [runner.make(case, make_inputs(case), 1).result() for runner in found]
    assert 0 < np.abs(results[0] - results[1]).max() < 0.05
