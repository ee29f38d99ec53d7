"""All suites one after the other, for `./dev bench check`."""

from __future__ import annotations

import re

from qkv_bench import decode, instructions, small_suites, suite
from qkv_bench.attention import Settings
from qkv_bench.cases import CASES
from qkv_bench.dtypes import DTYPES, FLOAT32
from qkv_bench.results import Results
from qkv_bench.targets import Target


def measure(targets: list[Target], settings: Settings) -> Results:
    """All cases and extras on the target in use, and on other ones the cases that some target needs there."""
    parts = []
    for dtype in DTYPES:
        of_dtype = Settings(quick=settings.quick, cpus=settings.cpus, dtype=dtype)
        parts.append(suite.run(of_dtype, extras=dtype == FLOAT32))
    parts += [small_suites.ragged_batch(settings.quick), small_suites.decoding(decode.Settings(quick=settings.quick))]
    parts.append(small_suites.rotating("", settings.quick))
    results = Results.merged(parts)
    for target, dtype, cases in elsewhere(targets, results.machine):
        only = "|".join(f"^{re.escape(case)}$" for case in cases)
        wanted = Settings(only=only, threads=(1,), quick=settings.quick, cpus=settings.cpus, dtype=dtype)
        results.runs += suite.run_on_target(target, wanted)
    return results


def elsewhere(targets: list[Target], machine: dict[str, object]) -> list[tuple[str, str, list[str]]]:
    """(target, dtype, cases) of what no run on the target in use can say, where this CPU has another that can."""
    wanted: dict[tuple[str, str], set[str]] = {}
    for target in targets:
        names = instructions.targets_for(machine, target.needs, target.lacks)
        if not names or machine["target"] in names:
            continue
        for case in target.case_names():
            if case in CASES:
                wanted.setdefault((names[0], CASES[case].dtype), set()).add(case)
    return [(name, dtype, sorted(cases)) for (name, dtype), cases in wanted.items()]
