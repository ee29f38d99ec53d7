"""Times the cases of one dtype: every runner and the peak of the machine take turns, round by round."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import qkv
from qkv_bench import native
from qkv_bench.cases import CASES, QUICK_OPERATIONS, Case, Direction, make_inputs
from qkv_bench.clock import PEAK_SECONDS, SAMPLE_SECONDS, Task, take_turns
from qkv_bench.dtypes import BFLOAT16, FLOAT32
from qkv_bench.progress import Progress
from qkv_bench.results import Run
from qkv_bench.runners import Runner, UnableError, prepare_checked


@dataclass(frozen=True)
class Settings:
    """What to measure, and how thoroughly. No threads: one, and two where a case asks for it and the CPUs allow."""

    only: str = ""
    threads: tuple[int, ...] = ()
    quick: bool = False
    cpus: int = 1
    peers: bool = True
    dtype: str = FLOAT32
    direction: Direction = "forward"

    @property
    def rounds(self) -> int:
        """Samples of each task."""
        return 3 if self.quick else 5

    def takes(self, case: Case) -> bool:
        """Whether a case is of the kind that is measured."""
        return (case.dtype, case.direction) == (self.dtype, self.direction)

    def threads_of(self, case: Case) -> tuple[int, ...]:
        """How many threads a case runs with."""
        if self.threads:
            return self.threads
        return (1, 2) if case.two_threads and self.cpus >= 2 else (1,)


@dataclass(frozen=True)
class Item:
    """A case with a number of threads."""

    case: Case
    threads: int


def plan(settings: Settings) -> list[list[Item]]:
    """The groups of what is measured together. Raises ValueError if the settings choose nothing."""
    try:
        pattern = re.compile(settings.only)
    except re.error as error:
        raise ValueError(f"--only {settings.only!r}: {error}") from error
    groups: dict[str, list[Item]] = {}
    for case in CASES.values():
        if not settings.takes(case) or not pattern.search(case.name):
            continue
        if settings.quick and not settings.only and case.visible_operations > QUICK_OPERATIONS:
            continue
        items = groups.setdefault(case.group or case.name, [])
        items += [Item(case, threads) for threads in settings.threads_of(case)]
    if not groups:
        names = ", ".join(name for name, case in CASES.items() if settings.takes(case))
        raise ValueError(f"--only {settings.only!r} matches no case; there are {names}")
    return list(groups.values())


def measure(settings: Settings, runners: list[Runner]) -> list[Run]:
    """Measures all that the settings choose, in the order of the cases."""
    groups = plan(settings)
    progress = Progress(sum(map(len, groups)) + len(groups))
    runs: list[Run] = []
    threads_before = qkv.num_threads()
    for group in groups:
        runs += _measure_group(group, settings, runners, progress)
    qkv.set_num_threads(threads_before)
    progress.clear()
    order = {name: i for i, name in enumerate(CASES)}
    return sorted(runs, key=lambda run: (order[run.case], run.threads))


def _measure_group(group: list[Item], settings: Settings, runners: list[Runner], progress: Progress) -> list[Run]:
    steps: list[Callable[[], object]] = []
    runs = []
    for item in group:
        progress.step(f"preparing {item.case.name}, threads {item.threads}")
        run, tasks = _prepare(item, runners, SAMPLE_SECONDS / (3 if settings.quick else 1))
        steps.append(partial(_sample_peak, run))
        steps += [task.sample for task in tasks]
        runs.append(run)
    progress.step(f"measuring {', '.join(sorted({item.case.name for item in group}))}")
    take_turns(steps, settings.rounds)
    return runs


def _sample_peak(run: Run) -> None:
    run.peak.append(native.fma_peak(run.target, PEAK_SECONDS))
    if run.dtype == BFLOAT16 and (peak := native.bf16_dot_peak(PEAK_SECONDS)):
        run.dot_peak.append(peak)


def _prepare(item: Item, runners: list[Runner], sample_seconds: float) -> tuple[Run, list[Task]]:
    """The run of an item, and the tasks that will fill its samples; who can not do it is left out with a reason."""
    run = Run(item.case.name, item.threads, qkv.target(), item.case.visible_operations, dtype=item.case.dtype)
    inputs = make_inputs(item.case)
    tasks = []
    expected = None
    for runner in runners:
        try:
            prepared = prepare_checked(runner, item.case, inputs, item.threads, expected)
        except UnableError as error:
            run.left_out[runner.name] = str(error)
            if "another thing" in str(error):
                print(f"{item.case.name}: {runner.name} {error}", file=sys.stderr)
            continue
        if expected is None:  # the first runner is qkv
            expected = prepared.result()
        task = Task(prepared.call, prepared.before_sample, keep=prepared)
        task.calibrate(sample_seconds)
        run.samples[runner.name] = task.samples
        if prepared.variant:
            run.variants[runner.name] = prepared.variant
        tasks.append(task)
    return run, tasks
