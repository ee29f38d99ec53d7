"""Decoding: bytes, turns, what is compared and what is left out; caches and clocks are made up."""

from __future__ import annotations

import statistics
from types import SimpleNamespace

import numpy as np
import pytest

import qkv
from qkv_bench import append, cache_store, decode, decode_peer, machine, native
from qkv_bench.cache_store import Shape
from qkv_bench.decode import Settings
from qkv_bench.decode_cases import CASES, DecodeCase
from qkv_bench.decode_operands import make_operands
from qkv_bench.runners import UnableError

SMALL = DecodeCase(4, 2, 8, 16, "float32")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One case that takes no time, and memory that is read at a known rate."""
    monkeypatch.setattr(decode, "CASES", {SMALL.name: SMALL})
    monkeypatch.setattr(decode, "LEAST_BYTES", 5 * SMALL.bytes)
    monkeypatch.setattr(decode, "SAMPLE_SECONDS", 1e-4)
    monkeypatch.setattr(machine, "last_level_bytes", lambda: SMALL.bytes)
    monkeypatch.setattr(native, "read_rate", lambda memory, threads: 1e9 * threads)


def test_bytes_count_once_for_each_kv_head() -> None:
    assert DecodeCase(8, 8, 64, 8192, "float32").bytes == 2 * 8 * 8192 * 64 * 4
    assert DecodeCase(32, 8, 128, 8192, "bfloat16").bytes == 2 * 8 * 8192 * 128 * 2
    assert DecodeCase(8, 8, 64, 8192, "int8").bytes == 2 * 8 * 8192 * (64 + 4)


def test_the_list_is_whole() -> None:
    layouts, lengths, dtypes = ("8x64", "32:8x128"), (8192, 32768), ("float32", "bfloat16", "int8")
    assert set(CASES) == {f"decode-{a}-kv{n}-{dtype}" for a in layouts for n in lengths for dtype in dtypes}


def test_quick_and_only_choose() -> None:
    assert {case.kv_len for case in decode.plan(Settings(quick=True))} == {8192}
    assert [case.name for case in decode.plan(Settings(only="8x64-kv32768-int8", quick=True))] == [
        "decode-8x64-kv32768-int8"
    ]
    with pytest.raises(ValueError, match="matches no case; there are decode-8x64"):
        decode.plan(Settings(only="nothing"))


def test_caches_together_are_larger_than_what_the_processor_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "last_level_bytes", lambda: 384 << 20)
    for case in CASES.values():
        assert decode.copies(case) * case.bytes >= 4 * (384 << 20)
    monkeypatch.setattr(machine, "last_level_bytes", lambda: 1 << 20)
    assert decode.copies(CASES["decode-8x64-kv8192-float32"]) * (32 << 20) == 512 << 20
    assert min(decode.copies(case) for case in CASES.values()) == 2


def test_every_call_visits_another_cache() -> None:
    visited: list[int] = []
    stores = [SimpleNamespace(attend=lambda q, i=i: visited.append(i)) for i in range(3)]
    call = decode.in_turn(stores, np.zeros(1))  # type: ignore[arg-type]
    for _ in range(7):
        call()
    assert visited == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_whole_measurement(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    case = DecodeCase(4, 2, 8, 16, dtype)
    monkeypatch.setattr(decode, "CASES", {case.name: case})
    before = qkv.num_threads()
    one, two = decode.measure(Settings(quick=True, only=".", peers=False))
    assert qkv.num_threads() == before
    assert (one.case, one.threads, two.threads, one.suite, one.dtype) == (case.name, 1, 2, "decode", dtype)
    assert one.operations == case.bytes
    assert one.peak == two.peak == [1e9] * 3
    assert len(one.samples["qkv"].cpu) == 3
    rates = [case.bytes / seconds for seconds in two.samples["qkv"].wall]
    assert two.share() == pytest.approx(statistics.median(rates) / 2e9)


@pytest.mark.usefixtures("_small")
def test_what_can_not_be_measured_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 1000)
    assert decode.measure(Settings(peers=False, quick=True, only=".")) == []
    assert "GiB of memory, left out" in capsys.readouterr().err


def test_another_result_is_not_timed() -> None:
    operands = make_operands(SMALL)
    right = qkv.attention(operands.q, operands.k, operands.v)
    decode.check_store(SMALL, operands, right)
    for wrong in (right * 1.01, right * np.nan):
        with pytest.raises(UnableError, match="differs by"):
            decode.check_store(SMALL, operands, wrong)


def test_a_cache_is_made_filled_and_attended_to() -> None:
    operands = make_operands(SMALL)
    store = cache_store.make(Shape(2, 8, 20), "float32")
    store.append(operands.k[:, :, :5], operands.v[:, :, :5])
    store.append(operands.k[:, :, 5:], operands.v[:, :, 5:])
    np.testing.assert_array_equal(store.attend(operands.q), qkv.attention(operands.q, operands.k, operands.v))


def test_torch_has_no_int8() -> None:
    with pytest.raises(UnableError, match="no int8 cache"):
        decode_peer.prepare(DecodeCase(4, 2, 8, 16, "int8"), make_operands(SMALL), np.zeros(1), 2)


def test_appending_is_timed_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "append_call", lambda calls, **kind: None)
    assert list(append.measure(2)) == ["numpy"]
    monkeypatch.setattr(native, "append_call", lambda calls, **kind: 1e-6)
    times = append.measure(2)
    assert times["c++"] == times["c++, ring, bfloat16, rope"] == [1e-6, 1e-6]
    assert all(0 <= seconds < 1 for seconds in times["numpy"])


def test_the_machine_says_how_large_its_caches_are(tmp_path) -> None:
    for index, size in enumerate(("32K", "512K", "98304K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert machine.last_level_bytes(tmp_path) == 96 << 20
    assert machine.last_level_bytes(tmp_path / "none") == 32 << 20
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:      2048 kB\n")
    assert machine.available_bytes(tmp_path / "meminfo") == 2 << 20
    assert machine.available_bytes(tmp_path / "none") > 1 << 60
