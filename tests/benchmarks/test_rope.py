"""The benchmark of rotary positions; nothing is timed for real."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import qkv
from qkv_bench import decode, native, rope, rope_cases, table, targets
from qkv_bench.results import Results
from qkv_bench.runners import UnableError

SMALL = (1, 2, 8, 16)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope, "SHAPE", SMALL)
    monkeypatch.setattr(rope, "SAMPLE_SECONDS", 1e-6)
    monkeypatch.setattr(decode, "bytes_of_cold", lambda: 1)
    monkeypatch.setattr(native, "copy_rate", lambda source, target: 2e9)


@pytest.mark.usefixtures("_small")
def test_every_case_is_measured_beside_copying() -> None:
    before = qkv.num_threads()
    runs = rope.measure("", 3)
    assert qkv.num_threads() == before
    assert [run.case for run in runs] == list(rope_cases.CASES)
    assert all(run.peak == [2e9] * 3 and len(run.samples["qkv"].cpu) == 3 for run in runs)
    text = table.terminal(Results({**MACHINE}, runs))
    assert "of copying" in text
    assert "GFLOP/s" not in text.split("case", 1)[1]


def test_bytes_are_read_and_written() -> None:
    case = rope_cases.CASES["rope-1x32x2048x128-half-bfloat16"]
    assert case.bytes == 2 * 2 * 32 * 2048 * 128
    assert {case.name for case in rope.plan("bfloat16")} == set(targets.group_of()) & {
        name for name in rope_cases.CASES if name.endswith("bfloat16")
    }
    with pytest.raises(ValueError, match="matches no case"):
        rope.plan("int8")
    with pytest.raises(ValueError, match="--only"):
        rope.plan("(")


@pytest.mark.usefixtures("_small")
def test_another_result_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain = qkv.position.Rope.apply
    monkeypatch.setattr(qkv.position.Rope, "apply", lambda self, x, **options: plain(self, x * x.dtype.type(1.1)))
    assert rope.measure("half-float32", 1) == []
    assert "the result differs by 1.0e-01, left out" in capsys.readouterr().err


@pytest.mark.usefixtures("_small")
def test_without_memory_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv_bench.machine.available_bytes", lambda: 1)
    with pytest.raises(UnableError, match=r"needs .* GiB of memory"):
        rope.make_pairs(next(iter(rope_cases.CASES.values())))


def test_pairs_take_turns() -> None:
    arrays = [np.full((1, 1, 1, 2), float(i), np.float32) for i in range(4)]
    call = rope.in_turn(qkv.position.Rope(2), itertools.cycle([(arrays[0], arrays[1]), (arrays[2], arrays[3])]))
    call()
    assert (arrays[1] == 0).all()
    assert (arrays[3] == 3).all()
    call()
    assert (arrays[3] == 2).all()


MACHINE = {
    "cpu": "c", "cpus": 2, "system": "s", "python": "3", "numpy": "2", "compiler": "g", "build_type": "Release",
    "target": "avx2", "targets": ["avx2"], "peak": 1e9, "date": "d", "busy_cpus": 0.0, "versions": {"qkv": "1"},
}  # fmt: skip
