"""Compares what was measured with targets.json: ok, short, or not measurable here and why."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkv_bench import instructions
from qkv_bench.clock import median_of_ratios
from qkv_bench.machine import QUIET_LOAD
from qkv_bench.results import Results, Run, geometric_mean
from qkv_bench.table import aligned
from qkv_bench.targets import Target

OK, SHORT, UNMEASURABLE = "ok", "short", "not measurable here"
#: Short, of a target that is only to be known.
NOTED = "short, for information"


@dataclass(frozen=True)
class Verdict:
    """What became of a target."""

    target: Target
    state: str
    measured: float | None = None
    note: str = ""


class UnmeasurableError(Exception):
    """The target says nothing about this machine, or what it needs is missing; the text says which."""


def judge(targets: list[Target], results: Results, factor: float = 1.0) -> list[Verdict]:
    """A verdict for each target, in their order."""
    return [_judge_one(target, results, factor) for target in targets]


def _judge_one(target: Target, results: Results, factor: float) -> Verdict:
    try:
        if target.needs and not instructions.has(results.machine, target.needs):
            raise UnmeasurableError(f"this machine has no {target.needs}")
        value, note = _value_of(target, results)
    except UnmeasurableError as error:
        return Verdict(target, UNMEASURABLE, note=str(error))
    missed = NOTED if target.informative else SHORT
    return Verdict(target, OK if target.is_met(value, factor) else missed, value, note)


def _value_of(target: Target, results: Results) -> tuple[float, str]:
    """The value that counts, and the case that it is of. Raises UnmeasurableError."""
    if target.measure in ("tiny", "append"):
        times = results.tiny if target.measure == "tiny" else results.append
        if target.source not in times:
            raise UnmeasurableError(f"no times from {target.source}")
        seconds = statistics.median(times[target.source])
        if not target.than:
            return seconds, ""
        if target.than not in times:
            raise UnmeasurableError(f"no times from {target.than}")
        return seconds / statistics.median(times[target.than]), ""
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
    where = instructions.targets_for(results.machine, target.needs, target.lacks)
    for name in where:
        run = results.find(case, target=name)
        if run is not None:
            return run
    asked = f" on {target.needs}" if target.needs else f" without {target.lacks}" if target.lacks else ""
    raise UnmeasurableError(f"{case} was not run{asked}")


def _share(target: Target, results: Results, case: str) -> float:
    return _run_of(target, results, case).share()


def _dot_share(target: Target, results: Results, case: str) -> float:
    share = _run_of(target, results, case).dot_share()
    if share is None:
        raise UnmeasurableError("this CPU has no dot products of bfloat16")
    return share


def _ratio(target: Target, results: Results, case: str) -> float:
    run = _run_of(target, results, case)
    peers = run.peers() if target.peer == "best" else [target.peer]
    ratios = [ratio for ratio in map(run.ratio, peers) if ratio is not None]
    if not ratios:
        who = "no peer" if target.peer == "best" else target.peer
        raise UnmeasurableError(f"{who} was {'' if target.peer == 'best' else 'not '}run on {case}")
    return min(ratios)


def _time_ratio(target: Target, results: Results, case: str) -> float:
    one, other = _run_of(target, results, case), _run_of(target, results, target.than)
    return median_of_ratios(one.seconds("qkv"), other.seconds("qkv"))


def _rate_ratio(target: Target, results: Results, case: str) -> float:
    one, other = _run_of(target, results, case), _run_of(target, results, target.than)
    work = one.operations / other.operations
    return work * median_of_ratios(other.seconds("qkv"), one.seconds("qkv"))


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
    "dot_share": _dot_share,
    "ratio": _ratio,
    "time_ratio": _time_ratio,
    "rate_ratio": _rate_ratio,
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
    if noted := sum(v.state == NOTED for v in verdicts):
        counts.append(f"{noted} {NOTED}")
    return "\n".join([*lines, "", ", ".join(counts)])


def _number(target: Target, value: float) -> str:
    if target.measure in ("tiny", "append") and not target.than:
        return f"{1e6 * value:.2f} us"
    if target.measure == "memory":
        return f"{value / 2**20:.2f} MiB"
    if target.measure == "error":
        return f"{value:.2e}"
    if target.measure == "share_gap":
        return f"{100 * value:.1f} points"
    if target.measure in ("share", "dot_share"):
        return f"{100 * value:.1f} %"
    return f"{value:.3f}"


def exit_code(verdicts: list[Verdict]) -> int:
    """1 if a target is short, else 0."""
    return int(any(verdict.state == SHORT for verdict in verdicts))
