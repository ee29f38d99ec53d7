"""Times rotary positions beside a plain copy: arrays that exceed the processor's caches are visited in turn."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator

import numpy as np

import qkv
from qkv_bench import decode, machine, native
from qkv_bench.cases import Array
from qkv_bench.clock import Task, take_turns
from qkv_bench.dtypes import TOLERANCES
from qkv_bench.progress import Progress
from qkv_bench.results import Run
from qkv_bench.rope_cases import CASES, SHAPE, RopeCase
from qkv_bench.runners import UnableError
from qkv_bench.storage import relative_difference, stored

SUITE = "rope"
SAMPLE_SECONDS = 0.05
#: Copies of a sample: each takes a few milliseconds.
COPIES = 8
Pair = tuple[Array, Array]


def plan(only: str) -> list[RopeCase]:
    """The cases. Raises ValueError if the expression chooses nothing."""
    try:
        chosen = [case for case in CASES.values() if re.search(only, case.name)]
    except re.error as error:
        raise ValueError(f"--only {only!r}: {error}") from error
    if not chosen:
        raise ValueError(f"--only {only!r} matches no case; there are {', '.join(CASES)}")
    return chosen


def measure(only: str, rounds: int) -> list[Run]:
    """Measures the cases with one thread; says on stderr what can not be."""
    cases = plan(only)
    progress = Progress(len(cases))
    threads_before = qkv.num_threads()
    qkv.set_num_threads(1)
    runs = []
    for case in cases:
        progress.step(case.name)
        try:
            runs.append(_measure_case(case, rounds))
        except (UnableError, ValueError) as error:
            print(f"bench: {case.name}: {error}, left out", file=sys.stderr)
    qkv.set_num_threads(threads_before)
    progress.clear()
    return runs


def _measure_case(case: RopeCase, rounds: int) -> Run:
    pairs = make_pairs(case)
    rope = qkv.position.Rope(SHAPE[-1], layout=case.layout)
    check(rope, case, pairs[0][0])
    run = Run(case.name, 1, qkv.target(), case.bytes, dtype=case.dtype, suite=SUITE)
    task = Task(in_turn(rope, itertools.cycle(pairs)))
    task.calibrate(SAMPLE_SECONDS)
    run.samples["qkv"] = task.samples
    take_turns([lambda: run.peak.append(copying(itertools.cycle(pairs))), task.sample], rounds)
    return run


def make_pairs(case: RopeCase) -> list[Pair]:
    """So many inputs and outputs that none is in a cache when its turn comes. Raises UnableError without memory."""
    count = max(2, math.ceil(decode.bytes_of_cold() / case.bytes))
    if 2 * count * case.bytes > machine.available_bytes():
        raise UnableError(f"needs {2 * count * case.bytes / 2**30:.1f} GiB of memory")
    x = stored(np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32), case.dtype)
    return [(x.copy(), x.copy()) for _ in range(count)]


def in_turn(rope: qkv.position.Rope, pairs: Iterator[Pair]) -> Callable[[], object]:
    """A call that turns another of the inputs each time."""

    def call() -> None:
        x, out = next(pairs)
        rope.apply(x, out=out)

    return call


def copying(pairs: Iterator[Pair]) -> float:
    """The peak: bytes a second that a plain loop reads and writes."""
    return statistics.median(native.copy_rate(*next(pairs)) for _ in range(COPIES))


def check(rope: qkv.position.Rope, case: RopeCase, x: Array) -> None:
    """Raises UnableError unless the last row of a head is the formula."""
    row = x[0, -1, -1].astype(np.float64)
    a, b = (row[::2], row[1::2]) if case.layout == "interleaved" else np.split(row, 2)
    angles = (SHAPE[-2] - 1) * rope.frequencies()
    turned = [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)]
    expected = np.stack(turned, -1).ravel() if case.layout == "interleaved" else np.concatenate(turned)
    difference = relative_difference(rope.apply(x)[0, -1, -1], expected)
    if not difference <= TOLERANCES[case.dtype]:
        raise UnableError(f"the result differs by {difference:.1e}")
