"""The peers of the benchmarks compute what qkv computes, in every way that is timed."""

from __future__ import annotations

import pytest
from bench_cases import KINDS, name_of, ours

import qkv
from qkv_bench import runners
from qkv_bench.cases import Case, make_inputs


@pytest.fixture(autouse=True)
def _threads():
    before = qkv.num_threads()
    yield
    qkv.set_num_threads(before)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", KINDS, ids=name_of)
def test_torch(case: Case) -> None:
    import torch

    before = torch.get_num_threads()
    runners.prepare_checked(runners.TorchRunner(), case, make_inputs(case), 1, ours(case))
    torch.set_num_threads(before)


@pytest.mark.needs("onnx")
@pytest.mark.needs("onnxruntime")
@pytest.mark.parametrize("case", KINDS, ids=name_of)
def test_every_operator_of_onnxruntime(case: Case) -> None:
    from qkv_bench.onnx_runner import OnnxRunner, candidates

    inputs = make_inputs(case)
    found = list(candidates(case, inputs))
    assert len(found) == (3 if case.causal else 2)
    for candidate in found:
        prepared = OnnxRunner()._prepare(candidate, case, 1)
        runners.check_result(prepared.result(), ours(case))
    assert OnnxRunner().make(case, inputs, 1).variant in [candidate.operator for candidate in found]


@pytest.mark.needs("openvino")
@pytest.mark.parametrize("case", KINDS, ids=name_of)
def test_openvino(case: Case) -> None:
    from qkv_bench.openvino_runner import OpenVinoRunner

    runners.prepare_checked(OpenVinoRunner(), case, make_inputs(case), 1, ours(case))
