"""What is run, with which options, and what is measured around it. The peers: tests/python/test_bench_peers.py."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from bench_cases import KINDS, name_of, ours

import qkv
from qkv_bench import accuracy, attention, memory, native, runners
from qkv_bench.attention import Settings
from qkv_bench.cases import CASES, Case, make_inputs
from qkv_bench.runners import QkvRunner, UnableError


def hidden_by_hand(case: Case) -> np.ndarray:
    """Attention in double, as anybody would write it."""
    inputs = make_inputs(case)
    q, k, v = (array.astype(np.float64) for array in (inputs.q, inputs.k, inputs.v))
    n = case.shape[2]
    logits = q @ k.transpose(0, 1, 3, 2) / np.sqrt(case.shape[3])
    logits += 0 if inputs.bias is None else inputs.bias
    i, j = np.arange(n)[:, None], np.arange(n)
    seen = np.ones((n, n), np.bool_)
    seen &= (j <= i) if case.causal else True
    seen &= (i - j <= case.window[0]) if case.window else True
    seen &= (j < case.kv_lens) if case.kv_lens else True
    seen = seen & (True if inputs.mask is None else inputs.mask)
    weights = np.where(seen, np.exp(logits), 0)
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.fixture(autouse=True)
def _threads():
    before = qkv.num_threads()
    yield
    qkv.set_num_threads(before)


@pytest.mark.parametrize("case", KINDS, ids=name_of)
def test_qkv_is_called_as_the_case_says(case: Case) -> None:
    np.testing.assert_allclose(ours(case), hidden_by_hand(case), rtol=1e-5, atol=1e-6)


def test_another_result_is_not_timed() -> None:
    expected = np.zeros((1, 1, 2, 2), np.float32)
    runners.check_result(expected + 9e-5, expected)
    for wrong in (expected + 2e-4, expected * np.nan, expected[0]):
        with pytest.raises(UnableError, match="another thing"):
            runners.check_result(wrong, expected)


def test_16_bits_are_compared_as_a_whole() -> None:
    expected = np.linspace(-1, 1, 64, dtype=np.float16).reshape(1, 1, 8, 8)
    runners.check_result(expected * np.float16(1.001), expected)
    for wrong in (expected * np.float16(1.01), expected * np.float16(np.nan)):
        with pytest.raises(UnableError, match="another thing"):
            runners.check_result(wrong, expected)


def test_beside_16_bits_stands_float32() -> None:
    found, _ = runners.find_runners(peers=False, dtype="float16")
    assert [runner.name for runner in found] == ["qkv", "qkv float32"]
    case = Case((1, 2, 16, 8), causal=True, dtype="float16")
    results = [runner.make(case, make_inputs(case), 1).result() for runner in found]
    assert [result.dtype for result in results] == [np.float16, np.float32]
    runners.check_result(results[1], results[0])


def test_peers_can_be_left_out() -> None:
    found, missing = runners.find_runners(peers=False)
    assert [runner.name for runner in found] == ["qkv"]
    assert missing == {}


def test_a_peer_that_is_not_installed_is_left_out() -> None:
    with pytest.raises(UnableError, match="not installed"):
        runners.import_peer("no_such_module")


def test_the_plan_has_every_case_once_for_each_number_of_threads() -> None:
    items = [item for group in attention.plan(Settings(cpus=2)) for item in group]
    assert len(items) == len(set(items))
    forward = [case for case in CASES.values() if case.direction == "forward"]
    assert {item.case.name for item in items} == {case.name for case in forward if case.dtype == "float32"}
    back = [item.case for group in attention.plan(Settings(direction="backward")) for item in group]
    assert {(case.direction, case.dtype) for case in back} == {("backward", "float32")}
    half = [item.case for group in attention.plan(Settings(dtype="bfloat16")) for item in group]
    assert {case.dtype for case in half} == {"bfloat16"}
    assert len(half) == 8
    twice = [item.case.name for item in items if item.threads == 2]
    assert twice == [case.name for case in CASES.values() if case.two_threads and case.name in twice]
    assert len(twice) == 10
    assert all(item.threads == 1 for group in attention.plan(Settings(cpus=1)) for item in group)


def test_quick_and_only_choose() -> None:
    quick = {item.case.name for group in attention.plan(Settings(quick=True)) for item in group}
    assert "1x4x16384x64-full" not in quick
    assert "1x8x2048x64-full" in quick
    (group,) = attention.plan(Settings(only="16384.*full", threads=(1, 3), quick=True))
    assert [(item.case.name, item.threads) for item in group] == [("1x4x16384x64-full", 1), ("1x4x16384x64-full", 3)]
    with pytest.raises(ValueError, match="matches no case; there are 1x8x512x64-full"):
        attention.plan(Settings(only="nothing"))
    with pytest.raises(ValueError, match="--only '\\('"):
        attention.plan(Settings(only="("))


def test_a_whole_measurement_of_a_small_case(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((1, 1, 8, 4), causal=True)
    monkeypatch.setitem(CASES, case.name, case)
    monkeypatch.setattr(native, "fma_peak", lambda target, seconds: 1e11)
    (run,) = attention.measure(Settings(only=f"^{case.name}$", quick=True), [QkvRunner()])
    assert (run.case, run.threads, run.target) == (case.name, 1, qkv.target())
    assert run.operations == 4 * 36 * 4
    assert run.peak == [1e11] * 3
    assert len(run.samples["qkv"].cpu) == len(run.samples["qkv"].wall) == 3


def test_memory_beyond_the_result() -> None:
    size = 8 << 20
    block = b"x" * size

    def call(result: int) -> int:
        with mmap.mmap(-1, size) as scratch:
            scratch.write(block)
        return result

    assert abs(memory.bytes_beyond(lambda: call(0)) - size) < 2 << 20
    assert memory.bytes_beyond(lambda: call(size)) < 2 << 20
    assert memory.bytes_beyond(lambda: 1 << 40) == 0


def test_relative_error() -> None:
    exact = np.array([[3.0, 4.0]])
    assert accuracy.relative_error(np.array([[3.0, 4.5]], np.float32), exact) == pytest.approx(0.1)


@pytest.mark.skipif(not native.path_of_library().is_file(), reason="needs ./dev bench to have built libqkv_bench")
def test_the_library_measures() -> None:
    assert native.target() == qkv.target()
    assert native.fma_peak(native.target(), 0.001) > 1e8
    assert 0 < native.tiny_call(10) < 1
    assert native.bf16_dot_peak(0.001) == 0 or native.bf16_dot_peak(0.001) > 1e9
    assert all(1e7 < native.read_rate(np.ones(1 << 20, np.uint8), threads) < 1e13 for threads in (1, 2))


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_BENCH_LIBRARY", "/no/such/library.so")
    native._library.cache_clear()
    with pytest.raises(native.MissingLibraryError, match=r"/no/such/library.so is missing: ./dev bench builds it"):
        native.fma_peak("avx2")
    native._library.cache_clear()
