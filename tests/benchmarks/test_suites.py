"""The ragged batch, generation, and what the command line makes of its options; nothing is timed for real."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv_bench import __main__ as command
from qkv_bench import cache_bytes, decode, generate, native, ragged, ragged_case, suite
from qkv_bench.results import Results, Run
from qkv_bench.runners import UnableError

MACHINE = {
    "cpu": "c", "cpus": 2, "system": "s", "python": "3", "numpy": "2", "compiler": "g", "build_type": "Release",
    "target": "avx2", "targets": ["avx2"], "peak": 1e9, "date": "d", "busy_cpus": 0.0, "versions": {"qkv": "1"},
}  # fmt: skip


def test_the_batch_is_ragged() -> None:
    lengths = ragged_case.LENGTHS
    assert (len(lengths), min(lengths), max(lengths)) == (32, 1, 512)
    assert len(set(lengths)) == 32
    assert all(str(length) in ragged_case.description() for length in lengths)


def test_work_is_what_rows_see() -> None:
    ragged_pairs = padded_pairs = 0
    for length in ragged_case.LENGTHS:
        ragged_pairs += sum(1 for _ in range(length) for _ in range(length))
        padded_pairs += 512 * length
    assert ragged_case.operations(ragged_case.RAGGED) == 4 * 8 * 64 * ragged_pairs
    assert ragged_case.operations(ragged_case.PADDED) == 4 * 8 * 64 * padded_pairs


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "SAMPLE_SECONDS", 1e-6)
    monkeypatch.setattr(native, "fma_peak", lambda target, seconds: 1e11)


@pytest.mark.usefixtures("_short")
def test_both_forms_are_measured_in_the_same_rounds() -> None:
    before = qkv.num_threads()
    runs = ragged.measure(1)
    assert qkv.num_threads() == before
    assert [run.case for run in runs] == list(ragged_case.NAMES)
    assert all(len(run.samples["qkv"].cpu) == len(run.peak) == 1 for run in runs)
    assert {run.suite for run in runs} == {"ragged"}


@pytest.mark.usefixtures("_short")
def test_another_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = qkv.attention_varlen
    monkeypatch.setattr(qkv, "attention_varlen", lambda *arrays: plain(*arrays) * 1.01)
    with pytest.raises(UnableError, match="another result"):
        ragged.measure(1)


def test_generating_gives_the_rows_of_all_at_once() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 12, 8), dtype=np.float32) for _ in range(3))
    generate.check_same(q, k, v)
    last = generate.generate(generate.prefilled(k, v, 5), q, k, v, 5)
    np.testing.assert_allclose(last, qkv.attention(q, k, v, causal=True)[:, :, -1:], rtol=1e-5, atol=1e-6)


def test_a_row_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "QUICK_LENGTHS", (40, 50))
    rows = generate.measure(quick=True)
    assert [row["length"] for row in rows] == [40, 50]
    assert all(len(row["cached"]) == len(row["recomputed"]) == 3 for row in rows)


def test_a_cache_that_forgets_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "generate", lambda store, q, k, v, tokens: q[:, :, -1:])
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 12, 8), dtype=np.float32) for _ in range(3))
    with pytest.raises(UnableError, match="another row"):
        generate.check_same(q, k, v)


def test_sharing_heads_makes_caches_smaller() -> None:
    mha, gqa, mqa = (row["bfloat16"] for row in cache_bytes.by_layout().values())
    assert mha == 2 * 32 * 8192 * 128 * 2
    assert (mha / gqa, mha / mqa) == (4, 32)


def test_options_reach_the_suites(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []

    def run(settings: object, extras: bool) -> Results:
        seen.append((settings, extras))
        return Results(MACHINE)

    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr("sys.argv", ["bench", "attention", "--dtype", "float16"])
    assert command.main() == 0
    ((settings, extras),) = seen  # type: ignore[misc]
    assert (settings.dtype, extras) == ("float16", False)

    monkeypatch.setattr("qkv_bench.small_suites.decoding", lambda settings: seen.append(settings) or Results(MACHINE))
    monkeypatch.setattr("sys.argv", ["bench", "decode", "--quick", "--threads", "2", "--no-peers", "--only", "int8"])
    assert command.main() == 0
    assert seen[-1] == decode.Settings("int8", (2,), True, False)
    assert "no bfloat16 dot products" in capsys.readouterr().out


def test_several_files_are_judged_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Results(MACHINE, errors={"1x8x2048x64-full": 4e-7}).save(tmp_path / "a.json")
    Results(MACHINE, [Run("x", 1, "avx2", 1)], append={"c++": [9e-6]}).save(tmp_path / "b.json")
    monkeypatch.setattr("sys.argv", ["bench", "check", "--from", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert command.main() == 1
    text = capsys.readouterr().out
    assert "1 ok, 1 short" in text
    assert next(line for line in text.splitlines() if line.startswith("append one token, C++")).endswith("short")
