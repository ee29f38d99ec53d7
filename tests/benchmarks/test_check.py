"""Targets and verdicts, on results that were made up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from qkv_bench import check, everything, targets
from qkv_bench.clock import Samples
from qkv_bench.results import Results, Run, geometric_mean
from qkv_bench.targets import Target

FULL, CAUSAL = "1x8x2048x64-full", "1x8x2048x64-causal"
BF16, DECODE = "1x8x2048x64-full-bfloat16", "decode-8x64-kv8192-float32"
MACHINE = {"target": "avx2", "targets": ["avx2", "reference"], "cpus": 2, "busy_cpus": 0.0}


def a_run(case: str, seconds: float, threads: int = 1, target: str = "avx2", **peers: float) -> Run:
    """200 operations against a peak of 100 a second: `seconds` is 2 / share."""
    samples = {name: Samples([s] * 5, [s] * 5) for name, s in {"qkv": seconds, **peers}.items()}
    return Run(case, threads, target, 200, [100.0] * 5, samples)


def a_half_run(seconds: float, target: str = "avx512", dot_peak: float = 200.0, **peers: float) -> Run:
    run = a_run(BF16, seconds, target=target, **peers)
    run.samples |= {"qkv float32": run.samples.pop("wide")} if "wide" in peers else {}
    run.dtype, run.dot_peak = "bfloat16", [dot_peak] * 5 if dot_peak else []
    return run


def judge(results: Results, factor: float = 1.0, **target: Any) -> check.Verdict:
    return check.judge([Target("t", **target)], results, factor)[0]


RESULTS = Results(
    MACHINE,
    [
        a_run(FULL, 2.5, torch=5.0),
        a_run(CAUSAL, 4.0, torch=3.2),
        a_run(FULL + "-bias", 3.0, torch=3.0),
        a_run(FULL, 1.5, threads=2),
        a_half_run(1.25, target="avx2", torch=4.0, onnxruntime=2.0, wide=1.2),
        Run("ragged-32x8x512x64", 1, "avx2", 50, samples={"qkv": Samples([1.0] * 5, [1.0] * 5)}),
        Run("padded-32x8x512x64", 1, "avx2", 100, samples={"qkv": Samples([1.6] * 5, [1.6] * 5)}),
    ],
    memory={"qkv": {FULL: 500}, "torch": {FULL: 900}},
    tiny={"c++": [3e-6, 1e-6, 2e-6]},
    errors={FULL: 4e-7},
    append={"numpy": [3e-6, 1e-6, 2e-6], "c++, rope": [3e-6, 2.5e-6, 2.5e-6]},
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
        ({"measure": "dot_share", "cases": BF16, "at_least": 0.8}, 0.8),
        ({"measure": "ratio", "peer": "qkv float32", "cases": BF16, "at_least": 0.93}, 0.96),
        ({"measure": "ratio", "peer": "best", "cases": BF16, "at_least": 1.3}, 1.6),
        (
            {"measure": "rate_ratio", "cases": "ragged-32x8x512x64", "than": "padded-32x8x512x64", "at_least": 0.87},
            0.8,
        ),
        ({"measure": "append", "source": "numpy", "at_most": 2e-6}, 2e-6),
        ({"measure": "append", "source": "c++, rope", "than": "numpy", "at_most": 1.2}, 1.25),
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
        ({"measure": "append", "source": "c++", "at_most": 1}, "no times from c\\+\\+"),
        ({"measure": "append", "source": "numpy", "than": "c++", "at_most": 1}, "no times from c\\+\\+"),
        ({"measure": "dot_share", "cases": BF16, "at_least": 0.5, "needs": "avx512_bf16"}, "no avx512_bf16"),
        ({"measure": "share", "cases": DECODE, "at_least": 0.5}, f"{DECODE} was not run"),
        ({"measure": "ratio", "peer": "best", "cases": CAUSAL + "-float16", "at_least": 1}, "was not run"),
        ({"measure": "memory", "cases": CAUSAL, "at_most": 1}, "was not measured"),
        ({"measure": "model", "batch": 2, "tokens": 16, "at_least": 1}, "was not run"),
    ],
)
def test_what_can_not_be_measured_is_no_failure(target: dict[str, Any], why: str) -> None:
    verdict = judge(RESULTS, **target)
    assert verdict.state == check.UNMEASURABLE
    assert re.search(why, verdict.note)
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


def zen4(*runs: Run, targets: tuple[str, ...] = ("avx512", "avx2"), own: str = "") -> Results:
    machine = {**MACHINE, "target": own or targets[0], "targets": list(targets), "bf16_dot_peak": 2e11}
    return Results(machine, list(runs))


@pytest.mark.parametrize("targets", [("avx512", "avx2"), ("avx512_bf16", "avx512", "avx2")])
def test_with_and_without_an_instruction(targets: tuple[str, ...]) -> None:
    """Whether the target that uses it has a name of its own or not."""
    with_it: dict[str, Any] = {"measure": "dot_share", "cases": BF16, "at_least": 0.1, "needs": "avx512_bf16"}
    without = {"measure": "ratio", "peer": "qkv float32", "cases": BF16, "at_least": 0.93, "lacks": "avx512_bf16"}
    best, below = a_half_run(2.0, target=targets[0], wide=4.0), a_half_run(4.0, target=targets[1], wide=4.0)
    assert judge(zen4(best, below, targets=targets), **with_it).measured == pytest.approx(0.5)
    assert judge(zen4(best, below, targets=targets), **without).measured == pytest.approx(1.0)
    assert judge(zen4(best, targets=targets), **without).state == check.UNMEASURABLE
    forced = zen4(below, targets=targets, own=targets[1])
    assert judge(forced, **without).measured == pytest.approx(1.0)
    assert judge(forced, **with_it).state == check.UNMEASURABLE
    some = [Target("a", **with_it), Target("b", **without)]
    assert everything.elsewhere(some, zen4(targets=targets).machine) == [(targets[1], ("forward", "bfloat16"), [BF16])]


def test_a_target_with_more_counts_for_the_one_below() -> None:
    results = zen4(a_run(FULL, 2.5, target="avx512_bf16"), targets=("avx512_bf16", "avx512"))
    wanted: dict[str, Any] = {"measure": "share", "cases": FULL, "at_least": 0.1, "needs": "avx512"}
    assert judge(results, **wanted).measured == pytest.approx(0.8)
    assert everything.elsewhere([Target("a", **wanted)], results.machine) == []


def test_what_is_for_information_fails_nothing() -> None:
    verdict = judge(RESULTS, measure="share", cases=FULL, at_least=0.9, informative=True)
    assert verdict.state == check.NOTED
    assert check.exit_code([verdict]) == 0
    assert check.report([verdict]).endswith("0 ok, 0 short, 0 not measurable here, 1 short, for information")


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
    assert all(target.case_names() for target in found if target.measure in targets.PER_CASE)


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
