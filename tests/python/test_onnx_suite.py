"""qkv.onnx: ONNX's own node tests, all of them, and how many ONNX Runtime passes, as docs/onnx.md says."""

from __future__ import annotations

import pathlib
from typing import Any

import onnx_conformance
import pytest

# Of the release that the tests are pinned to. A case that is not found would otherwise be one that passes.
COUNTS = {"Attention": 93, "RotaryEmbedding": 8, "RMSNormalization": 19, "TensorScatter": 3}
ONNXRUNTIME = {"Attention": 84, "RotaryEmbedding": 8, "RMSNormalization": 19, "TensorScatter": 3}
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/onnx.md"

# Building the cases of all operators takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.needs("onnx", "1.23.2")]


@pytest.fixture(scope="module")
def cases() -> dict[str, list[Any]]:
    return onnx_conformance.load_cases()


@pytest.mark.parametrize("operator", COUNTS)
def test_all_cases_pass(operator: str, cases: dict[str, list[Any]]) -> None:
    assert len({case.name for case in cases[operator]}) == COUNTS[operator]
    assert onnx_conformance.failures(cases[operator], onnx_conformance.run_qkv) == {}


def test_the_comparison_can_fail(cases: dict[str, list[Any]]) -> None:
    def changed(change: Any) -> Any:
        def run(model: Any, inputs: Any) -> Any:
            return [change(output) for output in onnx_conformance.run_qkv(model, inputs)]

        return run

    for operator, few in cases.items():
        for change in (lambda y: y * 1.1, lambda y: y.astype("longdouble"), lambda y: y[None]):
            assert set(onnx_conformance.failures(few, changed(change))) >= {few[0].name}, operator


@pytest.mark.needs("onnxruntime", "1.32.0")
@pytest.mark.parametrize("operator", ONNXRUNTIME)
def test_what_onnxruntime_passes(operator: str, cases: dict[str, list[Any]]) -> None:
    failed = onnx_conformance.failures(cases[operator], onnx_conformance.run_onnxruntime)
    assert len(cases[operator]) - len(failed) == ONNXRUNTIME[operator], failed


def test_the_page_has_these_counts() -> None:
    text = PAGE.read_text()
    for operator, count in COUNTS.items():
        assert f"| {operator} | {count} | {count} | {ONNXRUNTIME[operator]} |" in text
