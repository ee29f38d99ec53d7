"""Compares what was measured with targets.json: ok, short, or not measurable here and why."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv_bench import suite
from qkv_bench.attention import Settings
from qkv_bench.clock import median_of_ratios
from qkv_bench.machine import QUIET_LOAD
from qkv_bench.results import Results, Run, geometric_mean
from qkv_bench.table import aligned
from qkv_bench.targets import Target

OK, SHORT, UNMEASURABLE = "ok", "short", "not measurable here"


@dataclass(frozen=True)
class Verdict:
    """What became of a target."""

    target: Target
    state: str
    measured: float | None = None
    note: str = ""


class UnmeasurableError(Exception):
    """The target says nothing about this machine, or what it needs is missing; the text says which."""


def measure(targets: list[Target], settings: Settings) -> Results:
    """All cases and extras on the target in use, and on other ones the cases that some target needs there."""
    results = suite.run(settings, extras=True)
    here = results.machine["target"]
    others = dict.fromkeys(target.needs for target in targets if target.needs not in ("", here))
    for name in others:
        if name not in results.machine["targets"]:
            continue
        cases = {case for target in targets if target.needs == name for case in target.case_names()}
        only = "|".join(f"^{re.escape(case)}$" for case in sorted(cases))
        wanted = Settings(only=only, threads=(1,), quick=settings.quick, cpus=settings.cpus)
        results.runs += suite.run_on_target(name, wanted)
    return results


def judge(targets: list[Target], results: Results, factor: float = 1.0) -> list[Verdict]:
    """A verdict for each target, in their order."""
    return [_judge_one(target, results, factor) for target in targets]


def _judge_one(target: Target, results: Results, factor: float) -> Verdict:
    try:
        if target.needs and target.needs not in results.machine["targets"]:
            raise UnmeasurableError(f"this machine has no {target.needs}")
        value, note = _value_of(target, results)
    except UnmeasurableError as error:
        return Verdict(target, UNMEASURABLE, note=str(error))
    return Verdict(target, OK if target.is_met(value, factor) else SHORT, value, note)


def _value_of(target: Target, results: Results) -> tuple[float, str]:
    """The value that counts, and the case that it is of. Raises UnmeasurableError."""
    if target.measure == "tiny":
        if target.source not in results.tiny:
            raise UnmeasurableError(f"no times from {target.source}")
        return statistics.median(results.tiny[target.source]), ""
    if target.measure == "model":
        ratio = results.model_ratio(target.batch, target.tokens)
        if ratio is None:
            raise UnmeasurableError("the model was not run")
        return ratio, ""
    values, problems = [], []
    for case in target.case_names():
        try:
            values.append((_PER_CASE[target.measure](target, results, case), case))
        except UnmeasurableError as error:
            problems.append(str(error))
    if not values:
        raise UnmeasurableError(problems[0])
    note = f", {len(problems)} of {len(values) + len(problems)} cases missing" if problems else ""
    if target.mean == "geometric":
        return geometric_mean([value for value, _ in values]), f"mean of {len(values)}{note}"
    value, case = target.worst(values)
    return value, (case if len(values) > 1 else "") + note


def _run_of(target: Target, results: Results, case: str) -> Run:
    run = results.find(case, target=target.needs or None)
    if run is None:
        raise UnmeasurableError(f"{case} was not run" + (f" on {target.needs}" if target.needs else ""))
    return run


def _share(target: Target, results: Results, case: str) -> float:
    return _run_of(target, results, case).share()


def _ratio(target: Target, results: Results, case: str) -> float:
    ratio = _run_of(target, results, case).ratio(target.peer)
    if ratio is None:
        raise UnmeasurableError(f"{target.peer} was not run on {case}")
    return ratio


def _time_ratio(target: Target, results: Results, case: str) -> float:
    one, other = _run_of(target, results, case), _run_of(target, results, target.than)
    return median_of_ratios(one.seconds("qkv"), other.seconds("qkv"))


def _share_gap(target: Target, results: Results, case: str) -> float:
    return _run_of(target, results, target.than).share() - _run_of(target, results, case).share()


def _speedup(target: Target, results: Results, case: str) -> float:
    if results.machine["cpus"] < target.threads:
        raise UnmeasurableError(f"needs {target.threads} CPUs")
    if results.machine["busy_cpus"] > QUIET_LOAD:
        raise UnmeasurableError(f"other programs used {results.machine['busy_cpus']:.1f} CPUs")
    speedup = results.speedup(case, target.threads)
    if speedup is None:
        raise UnmeasurableError(f"{case} was not run with {target.threads} threads")
    return speedup


def _memory(target: Target, results: Results, case: str) -> float:
    return _found(results.memory.get("qkv", {}), case, "memory")


def _error(target: Target, results: Results, case: str) -> float:
    return _found(results.errors, case, "error")


def _found(values: dict[str, Any], case: str, what: str) -> float:
    if case not in values:
        raise UnmeasurableError(f"the {what} of {case} was not measured")
    return float(values[case])


_PER_CASE: dict[str, Callable[[Target, Results, str], float]] = {
    "share": _share,
    "ratio": _ratio,
    "time_ratio": _time_ratio,
    "share_gap": _share_gap,
    "speedup": _speedup,
    "memory": _memory,
    "error": _error,
}


def report(verdicts: list[Verdict], factor: float = 1.0) -> str:
    """A line for each target, and the sums."""
    rows = [["target", "measured", "wanted", "verdict"]]
    notes = [""]
    for verdict in verdicts:
        target = verdict.target
        sign = ">=" if target.at_least is not None else "<="
        measured = "-" if verdict.measured is None else _number(target, verdict.measured)
        rows.append([target.id, measured, f"{sign} {_number(target, target.limit(factor))}", verdict.state])
        notes.append(verdict.note)
    lines = [f"{line}  {note}".rstrip() for line, note in zip(aligned(rows).splitlines(), notes, strict=True)]
    counts = [f"{sum(v.state == state for v in verdicts)} {state}" for state in (OK, SHORT, UNMEASURABLE)]
    return "\n".join([*lines, "", ", ".join(counts)])


def _number(target: Target, value: float) -> str:
    if target.measure == "tiny":
        return f"{1e6 * value:.2f} us"
    if target.measure == "memory":
        return f"{value / 2**20:.2f} MiB"
    if target.measure == "error":
        return f"{value:.2e}"
    if target.measure == "share_gap":
        return f"{100 * value:.1f} points"
    if target.measure == "share":
        return f"{100 * value:.1f} %"
    return f"{value:.3f}"


def exit_code(verdicts: list[Verdict]) -> int:
    """1 if a target is short, else 0."""
    return int(any(verdict.state == SHORT for verdict in verdicts))
