"""All suites one after the other, for `./dev bench check`."""

from __future__ import annotations

import re

from qkv_bench import decode, instructions, small_suites, suite
from qkv_bench.attention import Settings
from qkv_bench.cases import CASES, DIRECTIONS, Direction
from qkv_bench.dtypes import DTYPES, FLOAT32
from qkv_bench.results import Results
from qkv_bench.targets import Target

Kind = tuple[Direction, str]
"""Which pass, and the dtype."""


def measure(targets: list[Target], settings: Settings) -> Results:
    """All cases and extras on the target in use, and on other ones the cases that some target needs there."""
    parts = []
    kinds = sorted({(case.direction, case.dtype) for case in CASES.values()}, key=_order)
    for direction, dtype in kinds:
        of_kind = Settings(quick=settings.quick, cpus=settings.cpus, dtype=dtype, direction=direction)
        parts.append(suite.run(of_kind, extras=(direction, dtype) == ("forward", FLOAT32)))
    parts += [small_suites.ragged_batch(settings.quick), small_suites.decoding(decode.Settings(quick=settings.quick))]
    parts.append(small_suites.rotating("", settings.quick))
    results = Results.merged(parts)
    for target, kind, cases in elsewhere(targets, results.machine):
        only = "|".join(f"^{re.escape(case)}$" for case in cases)
        direction, dtype = kind
        wanted = Settings(only, (1,), settings.quick, settings.cpus, dtype=dtype, direction=direction)
        results.runs += suite.run_on_target(target, wanted)
    return results


def _order(kind: Kind) -> tuple[int, int]:
    return DIRECTIONS.index(kind[0]), DTYPES.index(kind[1])


def elsewhere(targets: list[Target], machine: dict[str, object]) -> list[tuple[str, Kind, list[str]]]:
    """(target, kind, cases) of what no run on the target in use can say, where this CPU has another that can."""
    wanted: dict[tuple[str, Kind], set[str]] = {}
    for target in targets:
        names = instructions.targets_for(machine, target.needs, target.lacks)
        if not names or machine["target"] in names:
            continue
        for case in target.case_names():
            if case in CASES:
                kind = (CASES[case].direction, CASES[case].dtype)
                wanted.setdefault((names[0], kind), set()).add(case)
    return [(name, kind, sorted(cases)) for (name, kind), cases in wanted.items()]
