"""The peers of the benchmarks compute what qkv computes, in every way that is timed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from bench_cases import KINDS, name_of, ours

import qkv
from qkv_bench import attention, decode_peer, native, runners
from qkv_bench.attention import Settings
from qkv_bench.cases import CASES, Case, Direction, make_inputs
from qkv_bench.decode_cases import DecodeCase
from qkv_bench.decode_operands import make_operands
from qkv_bench.gradient_runners import QkvGradients, TorchGradients
from qkv_bench.runners import QkvFloat32Runner, QkvRunner, UnableError

HALF = [
    Case((2, 3, 16, 8), causal=causal, dtype=dtype) for dtype in ("float16", "bfloat16") for causal in (False, True)
]


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


@pytest.mark.needs("torch")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("direction", ["backward", "both"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_torch(dtype: str, direction: Direction, causal: bool) -> None:
    import torch

    before = torch.get_num_threads()
    case = Case((2, 3, 16, 8), causal=causal, direction=direction, dtype=dtype)
    inputs = make_inputs(case)
    expected = QkvGradients().make(case, inputs, 1).result()
    result = TorchGradients().make(case, inputs, 1).result()
    np.testing.assert_allclose(result, expected, atol=1e-5 if case.dtype == "float32" else 0.05)
    torch.set_num_threads(before)


@pytest.mark.needs("torch")
def test_the_gradient_of_a_bias_by_torch() -> None:
    case = Case((1, 3, 16, 8), direction="both", head_bias=True)
    inputs = make_inputs(case)
    expected = QkvGradients().make(case, inputs, 1).result()
    np.testing.assert_allclose(TorchGradients().make(case, inputs, 1).result(), expected, atol=1e-5)
    for other in (dataclasses.replace(case, direction="backward"), dataclasses.replace(case, dropout=0.1)):
        with pytest.raises(UnableError):
            TorchGradients().make(other, inputs, 1).result()


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


@pytest.mark.needs("torch")
@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize("case", HALF, ids=name_of)
def test_torch_in_16_bits(case: Case) -> None:
    import torch

    before = torch.get_num_threads()
    runners.prepare_checked(runners.TorchRunner(), case, make_inputs(case), 1, ours(case))
    torch.set_num_threads(before)


@pytest.mark.needs("onnx")
@pytest.mark.needs("onnxruntime")
@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize("case", HALF, ids=name_of)
def test_onnxruntime_in_16_bits(case: Case) -> None:
    """float16 as we do; bfloat16 is refused by name."""
    from qkv_bench.onnx_runner import OnnxRunner

    if case.dtype == "bfloat16":
        with pytest.raises(UnableError, match="has no bfloat16 on CPUs"):
            OnnxRunner().make(case, make_inputs(case), 1)
    else:
        runners.prepare_checked(OnnxRunner(), case, make_inputs(case), 1, ours(case))


@pytest.mark.needs("openvino")
@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize("case", HALF, ids=name_of)
def test_openvino_in_16_bits(case: Case) -> None:
    """As we do, or a CPU on which it would compute in something else."""
    from qkv_bench.openvino_runner import OpenVinoRunner

    runner, inputs = OpenVinoRunner(), make_inputs(case)
    try:
        runners.prepare_checked(runner, case, inputs, 1, ours(case))
    except UnableError:
        with pytest.raises(UnableError, match=f"computes {case.dtype} in f32 on this CPU"):
            runner.make(case, inputs, 1)


@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize("peak", [0.0, 2e11])
def test_bfloat16_has_a_peak_of_its_own_where_the_cpu_has_one(monkeypatch: pytest.MonkeyPatch, peak: float) -> None:
    case = Case((1, 1, 8, 4), dtype="bfloat16")
    monkeypatch.setitem(CASES, case.name, case)
    monkeypatch.setattr(native, "fma_peak", lambda target, seconds: 1e11)
    monkeypatch.setattr(native, "bf16_dot_peak", lambda seconds: peak)
    settings = Settings(only=f"^{case.name}$", quick=True, dtype="bfloat16")
    (run,) = attention.measure(settings, [QkvRunner(), QkvFloat32Runner()])
    assert run.dtype == "bfloat16"
    assert run.dot_peak == [peak] * (3 if peak else 0)
    assert (run.dot_share() is None) == (peak == 0)
    assert set(run.samples) == {"qkv", "qkv float32"}
    assert run.peers() == []


@pytest.mark.needs("torch")
@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize(("heads", "dtype"), [(2, "float32"), (4, "float32"), (4, "bfloat16")])
def test_torch_decodes(heads: int, dtype: str) -> None:
    case = DecodeCase(heads, 2, 8, 16, dtype)
    operands = make_operands(case)
    expected = qkv.attention(operands.q, operands.k, operands.v)
    decode_peer.prepare(case, operands, expected, 2).call()
    with pytest.raises(UnableError, match="another thing"):
        decode_peer.prepare(case, operands, np.zeros_like(expected), 2)
