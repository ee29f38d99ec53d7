"""Targets and verdicts, on results that were made up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from qkv_bench import check, targets
from qkv_bench.clock import Samples
from qkv_bench.results import Results, Run, geometric_mean
from qkv_bench.targets import Target

FULL, CAUSAL = "1x8x2048x64-full", "1x8x2048x64-causal"
MACHINE = {"target": "avx2", "targets": ["avx2", "reference"], "cpus": 2, "busy_cpus": 0.0}


def a_run(case: str, seconds: float, threads: int = 1, target: str = "avx2", **peers: float) -> Run:
    """200 operations against a peak of 100 a second: `seconds` is 2 / share."""
    samples = {name: Samples([s] * 5, [s] * 5) for name, s in {"qkv": seconds, **peers}.items()}
    return Run(case, threads, target, 200, [100.0] * 5, samples)


def judge(results: Results, factor: float = 1.0, **target: Any) -> check.Verdict:
    return check.judge([Target("t", **target)], results, factor)[0]


RESULTS = Results(
    MACHINE,
    [
        a_run(FULL, 2.5, torch=5.0),
        a_run(CAUSAL, 4.0, torch=3.2),
        a_run(FULL + "-bias", 3.0, torch=3.0),
        a_run(FULL, 1.5, threads=2),
    ],
    memory={"qkv": {FULL: 500}, "torch": {FULL: 900}},
    tiny={"c++": [3e-6, 1e-6, 2e-6]},
    errors={FULL: 4e-7},
    model=[{"batch": 1, "tokens": 16, "qkv": [1.0, 2.0], "sdpa": [1.5, 3.0]}],
)


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ({"measure": "share", "cases": FULL, "at_least": 0.8}, 0.8),
        ({"measure": "share", "cases": f"{FULL}|{CAUSAL}", "at_least": 0.8}, 0.5),
        ({"measure": "ratio", "peer": "torch", "cases": FULL, "at_least": 1}, 2.0),
        ({"measure": "ratio", "peer": "torch", "cases": f"{FULL}|{CAUSAL}", "at_least": 1}, 0.8),
        (
            {"measure": "ratio", "peer": "torch", "cases": f"{FULL}|{CAUSAL}", "mean": "geometric", "at_least": 1},
            geometric_mean([2.0, 0.8]),
        ),
        ({"measure": "time_ratio", "cases": FULL + "-bias", "than": FULL, "at_most": 1}, 1.2),
        ({"measure": "share_gap", "cases": CAUSAL, "than": FULL, "at_most": 0.1}, 0.3),
        ({"measure": "speedup", "threads": 2, "cases": FULL, "at_least": 1.5}, 2.5 / 1.5),
        ({"measure": "tiny", "source": "c++", "at_most": 1e-6}, 2e-6),
        ({"measure": "memory", "cases": FULL, "at_most": 400}, 500),
        ({"measure": "error", "cases": FULL, "at_most": 5e-7}, 4e-7),
        ({"measure": "model", "batch": 1, "tokens": 16, "at_least": 1.0}, 1.5),
    ],
    ids=lambda value: value["measure"] if isinstance(value, dict) else "",
)
def test_verdicts(target: dict[str, Any], value: float) -> None:
    verdict = judge(RESULTS, **target)
    assert verdict.measured == pytest.approx(value)
    met = value >= target["at_least"] if "at_least" in target else value <= target["at_most"]
    assert verdict.state == (check.OK if met else check.SHORT)


def test_the_worst_case_is_named() -> None:
    assert judge(RESULTS, measure="share", cases=f"{FULL}|{CAUSAL}", at_least=0.1).note == CAUSAL


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({"measure": "share", "cases": FULL, "at_least": 0.5, "needs": "avx512"}, "no avx512"),
        ({"measure": "share", "cases": "1x8x4096x64-full", "at_least": 0.5}, "was not run"),
        ({"measure": "ratio", "peer": "openvino", "cases": FULL, "at_least": 1}, "openvino was not run"),
        ({"measure": "speedup", "threads": 2, "cases": CAUSAL, "at_least": 1}, "with 2 threads"),
        ({"measure": "speedup", "threads": 4, "cases": FULL, "at_least": 1}, "needs 4 CPUs"),
        ({"measure": "tiny", "source": "torch", "at_most": 1}, "no times from torch"),
        ({"measure": "memory", "cases": CAUSAL, "at_most": 1}, "was not measured"),
        ({"measure": "model", "batch": 2, "tokens": 16, "at_least": 1}, "was not run"),
    ],
)
def test_what_can_not_be_measured_is_no_failure(target: dict[str, Any], why: str) -> None:
    verdict = judge(RESULTS, **target)
    assert verdict.state == check.UNMEASURABLE
    assert why in verdict.note
    assert check.exit_code([verdict]) == 0


def test_a_busy_machine_says_nothing_about_threads() -> None:
    busy = Results({**MACHINE, "busy_cpus": 1.0}, RESULTS.runs)
    verdict = judge(busy, measure="speedup", threads=2, cases=FULL, at_least=9)
    assert verdict.state == check.UNMEASURABLE
    assert "1.0 CPUs" in verdict.note


def test_a_target_of_another_instruction_set_counts_its_own_runs() -> None:
    results = Results({**MACHINE, "target": "avx512", "targets": ["avx512", "avx2"]}, [a_run(FULL, 4.0)])
    results.runs.append(a_run(FULL, 2.5, target="avx512"))
    assert judge(results, measure="share", cases=FULL, at_least=0.1, needs="avx2").measured == pytest.approx(0.5)
    assert judge(results, measure="share", cases=FULL, at_least=0.1).measured == pytest.approx(0.8)


def test_the_factor_loosens_both_kinds_of_limit_and_nothing_that_is_exact() -> None:
    assert Target("t", "share", at_least=0.8).limit(0.5) == 0.4
    assert Target("t", "time_ratio", at_most=0.6).limit(0.5) == 1.2
    assert Target("t", "memory", at_most=100).limit(0.5) == 100
    assert Target("t", "error", at_most=1e-7).limit(0.5) == 1e-7
    assert judge(RESULTS, measure="share", cases=CAUSAL, at_least=0.8).state == check.SHORT
    assert judge(RESULTS, 0.6, measure="share", cases=CAUSAL, at_least=0.8).state == check.OK


def test_not_a_number_is_short() -> None:
    results = Results(MACHINE, errors={FULL: float("nan")})
    assert judge(results, measure="error", cases=FULL, at_most=1.0).state == check.SHORT


def test_the_report_has_a_line_for_each_and_counts() -> None:
    some = [
        Target("one", "share", FULL, at_least=0.7),
        Target("two", "share", CAUSAL, at_least=0.7),
        Target("three", "share", FULL, at_least=0.7, needs="avx512"),
    ]
    verdicts = check.judge(some, RESULTS)
    lines = check.report(verdicts).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["one", "two", "three"]
    assert re.search(r"80\.0 %\s+>= 70\.0 %\s+ok$", lines[1])
    assert re.search(r"50\.0 %\s+>= 70\.0 %\s+short$", lines[2])
    assert lines[3].endswith("not measurable here  this machine has no avx512")
    assert lines[-1] == "1 ok, 1 short, 1 not measurable here"
    assert [check.exit_code([verdict]) for verdict in verdicts] == [0, 1, 0]
    assert check.exit_code(verdicts) == 1


def test_the_file_of_targets_is_right() -> None:
    found = targets.load()
    assert len(found) >= 30
    assert {target.measure for target in found} == set(targets.MEASURES)
    assert all(target.case_names() for target in found if target.measure not in ("tiny", "model"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"measure": "shair", "cases": FULL, "at_least": 1}, "is none of"),
        ({"measure": "share", "cases": FULL}, "either"),
        ({"measure": "share", "cases": FULL, "at_least": 1, "at_most": 1}, "either"),
        ({"measure": "share", "cases": "1x8x2048x64", "at_least": 1}, "no case matches"),
        ({"measure": "time_ratio", "cases": FULL, "than": "x", "at_most": 1}, "there is no case 'x'"),
        ({"measure": "time_ratio", "cases": FULL, "than": "1x8x512x64-full", "at_most": 1}, "not measured together"),
        ({"measure": "share", "cases": FULL, "at_leest": 1}, "at_leest"),
    ],
)
def test_a_wrong_target_is_named(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps({"targets": [{"id": "this one", **entry}]}))
    with pytest.raises(ValueError, match=f"this one: .*{message}"):
        targets.load(path)


def test_a_target_stands_once(tmp_path: Path) -> None:
    entry = {"id": "a", "measure": "share", "cases": FULL, "at_least": 1}
    (tmp_path / "t.json").write_text(json.dumps({"targets": [entry, entry]}))
    with pytest.raises(ValueError, match="a: stands there twice"):
        targets.load(tmp_path / "t.json")
