"""benchmarks/targets.json: the figures that this project holds itself to.

A target is an object of

    id                  its name
    measure             share, dot_share, ratio, time_ratio, rate_ratio, share_gap, speedup, tiny, append, memory,
                        error or model
    cases               a regular expression that whole names of cases match; the worst of them counts
    mean                "geometric": the mean over the cases counts instead
    at_least, at_most   one of the two
    needs               a target of qkv, or an instruction that its best target uses where the CPU has it
                        ("avx512_bf16"): the cases run on it, and the machine must have it
    lacks               such an instruction: the cases run without it, on a CPU that has none or a target below the best
    informative         true: what falls short is shown, and is no failure

and what its measure needs: `peer` of a ratio (their time / ours; "best" is the fastest of them, "qkv float32" is
ourselves), `than` of time_ratio (time of the case / of that one), rate_ratio (operations or bytes a second) and
share_gap (that one's share less the case's), `threads` of a speedup, `source` of a tiny call ("c++", "numpy", "torch":
seconds) and of append (a name of append.py; with `than` the value is the time over that of another), `batch` and
`tokens` of the model ("sdpa" / "qkv"). Memory is in bytes. A share is that of the peak of float32, when decoding that
of reading memory, and of rotations that of copying it; a dot_share that of dot products of bfloat16.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from qkv_bench import decode_cases, ragged_case, rope_cases
from qkv_bench.cases import CASES
from qkv_bench.native import ROOT

TARGETS_FILE = ROOT / "benchmarks" / "targets.json"
PER_CASE = ("share", "dot_share", "ratio", "time_ratio", "rate_ratio", "share_gap", "speedup", "memory", "error")
MEASURES = (*PER_CASE, "tiny", "append", "model")
#: These are the same on a busy machine: a factor for noise does not loosen them.
EXACT = ("memory", "error")


@dataclass(frozen=True)
class Target:
    """One entry of the file; its documentation is the module's."""

    id: str
    measure: str
    cases: str = ""
    mean: str = ""
    at_least: float | None = None
    at_most: float | None = None
    needs: str = ""
    lacks: str = ""
    informative: bool = False
    peer: str = ""
    than: str = ""
    threads: int = 1
    source: str = ""
    batch: int = 0
    tokens: int = 0

    def case_names(self) -> list[str]:
        """The cases that it is about; empty for tiny calls, appending and the model."""
        return [name for name in group_of() if self.cases and re.fullmatch(self.cases, name)]

    def limit(self, factor: float) -> float:
        """What is wanted, loosened for a noisy machine by a factor below 1."""
        if self.measure in EXACT:
            factor = 1
        if self.at_least is not None:
            return self.at_least * factor
        assert self.at_most is not None
        return self.at_most / factor

    def is_met(self, value: float, factor: float) -> bool:
        """Whether a value is good enough; NaN never is."""
        limit = self.limit(factor)
        return value >= limit if self.at_least is not None else value <= limit

    def worst(self, values: list[tuple[float, str]]) -> tuple[float, str]:
        """The value farthest from what is wanted, and its case."""
        return min(values) if self.at_least is not None else max(values)


def group_of() -> dict[str, str]:
    """{case: what it is measured together with}, of all suites."""
    groups = {name: case.group or name for name, case in CASES.items()}
    groups |= dict.fromkeys(ragged_case.NAMES, "ragged")
    groups |= dict.fromkeys(rope_cases.CASES, "rope")
    # One after the other, as all of them at once would take too much memory: their times are compared for information.
    return groups | dict.fromkeys(decode_cases.CASES, "decode")


def load(path: Path = TARGETS_FILE) -> list[Target]:
    """Reads and checks the file. Raises OSError, or ValueError with the entry that is wrong."""
    targets: list[Target] = []
    for entry in json.loads(path.read_text())["targets"]:
        try:
            target = Target(**entry)
        except TypeError as error:
            raise ValueError(f"{path.name}: {entry.get('id', entry)}: {error}") from error
        problem = _problem_of(target)
        if problem or target.id in {other.id for other in targets}:
            raise ValueError(f"{path.name}: {target.id}: {problem or 'stands there twice'}")
        targets.append(target)
    return targets


def _problem_of(target: Target) -> str:
    if target.measure not in MEASURES:
        return f"measure {target.measure!r} is none of {', '.join(MEASURES)}"
    if (target.at_least is None) == (target.at_most is None):
        return "needs either at_least or at_most"
    if target.measure in PER_CASE and not target.case_names():
        return f"no case matches {target.cases!r}"
    if target.measure in ("time_ratio", "rate_ratio", "share_gap"):
        group = group_of()
        if target.than not in group:
            return f"there is no case {target.than!r}"
        groups = {group[name] for name in (target.than, *target.case_names())}
        if len(groups) > 1:
            return f"its cases are not measured together: groups {', '.join(sorted(groups))}"
    return ""
