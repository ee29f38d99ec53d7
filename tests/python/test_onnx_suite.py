"""qkv.onnx: ONNX's own node tests, all of them, and how many ONNX Runtime passes, as docs/onnx.md says."""

from __future__ import annotations

import pathlib
from typing import Any

import onnx_conformance
import pytest

# Of the release that the tests are pinned to. A case that is not found would otherwise be one that passes.
COUNTS = {"Attention": 93, "RotaryEmbedding": 8, "RMSNormalization": 19, "TensorScatter": 3}
#: What ONNX Runtime does not have on CPUs (bfloat16, short masks), or computes otherwise (hidden logits).
ONNXRUNTIME_FAILS = {
    "test_attention_3d_causal_bf16",
    "test_attention_4d_attn_mask_causal_bf16",
    "test_attention_4d_causal_bf16",
    "test_attention_4d_causal_padded_kv_bf16",
    "test_attention_4d_padded_kv_bf16",
    "test_attention_4d_diff_heads_mask4d_padded_kv",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal",
}
#: And what is outside of the tolerance by a rounding of float16 where the page was written.
AT_THE_EDGE = {"test_attention_4d_causal_fp16"}
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
@pytest.mark.parametrize("operator", COUNTS)
def test_what_onnxruntime_passes(operator: str, cases: dict[str, list[Any]]) -> None:
    """The last bit of float16 depends on how a CPU sums, so these cases may pass or not by tolerance."""
    failed = onnx_conformance.failures(cases[operator], onnx_conformance.run_onnxruntime)
    rounded = {name for name in failed if name.endswith("fp16") and "Not equal to tolerance" in failed[name]}
    named = ONNXRUNTIME_FAILS & {case.name for case in cases[operator]}
    assert failed.keys() - rounded == named, failed


def test_the_page_has_these_counts() -> None:
    text = PAGE.read_text()
    for operator, count in COUNTS.items():
        others = len(ONNXRUNTIME_FAILS | AT_THE_EDGE) if operator == "Attention" else 0
        assert f"| {operator} | {count} | {count} | {count - others} |" in text
