"""Times decoding from memory: caches that together exceed the processor's own are visited in turn."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import qkv
from qkv_bench import cache_store, decode_peer, machine, native
from qkv_bench.cache_store import CacheStore, Shape
from qkv_bench.cases import Array
from qkv_bench.clock import Task, take_turns
from qkv_bench.decode_cases import CASES, LENGTHS, DecodeCase
from qkv_bench.decode_operands import Operands, make_operands
from qkv_bench.dtypes import TOLERANCES
from qkv_bench.progress import Progress
from qkv_bench.results import Run
from qkv_bench.runners import UnableError
from qkv_bench.storage import relative_difference

SUITE = "decode"
#: Caches of a case together, in sizes of the last level of the processor's caches, and at least that many bytes: a
#: virtual machine may not know how large its host's is.
LEVELS, LEAST_BYTES = 4, 512 << 20
SAMPLE_SECONDS = 0.03


@dataclass(frozen=True)
class Settings:
    """What to measure, and how thoroughly."""

    only: str = ""
    threads: tuple[int, ...] = (1, 2)
    quick: bool = False
    peers: bool = True

    @property
    def rounds(self) -> int:
        """Samples of each task."""
        return 3 if self.quick else 5


def plan(settings: Settings) -> list[DecodeCase]:
    """The cases. Raises ValueError if the settings choose nothing."""
    try:
        pattern = re.compile(settings.only)
    except re.error as error:
        raise ValueError(f"--only {settings.only!r}: {error}") from error
    quick = settings.quick and not settings.only
    chosen = [c for c in CASES.values() if pattern.search(c.name) and not (quick and c.kv_len > min(LENGTHS))]
    if not chosen:
        raise ValueError(f"--only {settings.only!r} matches no case; there are {', '.join(CASES)}")
    return chosen


def measure(settings: Settings) -> list[Run]:
    """Measures all that the settings choose; says on stderr what can not be."""
    cases = plan(settings)
    cold = np.ones(bytes_of_cold(), np.uint8)
    progress = Progress(2 * len(cases))
    runs: list[Run] = []
    threads_before = qkv.num_threads()
    for case in cases:
        progress.step(f"preparing {case.name}")
        try:
            runs += _measure_case(case, settings, cold, progress)
        except UnableError as error:
            print(f"bench: {case.name}: {error}, left out", file=sys.stderr)
    qkv.set_num_threads(threads_before)
    progress.clear()
    return runs


def bytes_of_cold() -> int:
    """So much that what was read before is in no cache of the processor any more."""
    return max(LEVELS * machine.last_level_bytes(), LEAST_BYTES)


def copies(case: DecodeCase) -> int:
    """How many caches are visited in turn; two at least, as the end of one is still warm when it is read again."""
    return max(2, math.ceil(bytes_of_cold() / case.bytes))


def _measure_case(case: DecodeCase, settings: Settings, cold: Array, progress: Progress) -> list[Run]:
    needed = 2 * (copies(case) + 2) * case.bytes
    if needed > machine.available_bytes():
        raise UnableError(f"needs {needed / 2**30:.1f} GiB of memory")
    operands = make_operands(case)
    stores = [filled(case, operands) for _ in range(copies(case))]
    expected = stores[0].attend(operands.q)
    check_store(case, operands, expected)
    left_out: dict[str, str] = {}
    peer = None
    try:
        peer = decode_peer.prepare(case, operands, expected, copies(case)) if settings.peers else None
    except UnableError as error:
        left_out["torch"] = str(error)
    runs: list[Run] = []
    steps: list[Callable[[], object]] = []
    for threads in settings.threads:
        run = Run(case.name, threads, qkv.target(), case.bytes, dtype=case.dtype, suite=SUITE)
        run.left_out = dict(left_out)
        tasks = {"qkv": Task(in_turn(stores, operands.q), partial(qkv.set_num_threads, threads))}
        if peer is not None:
            tasks["torch"] = Task(peer.call, partial(peer.set_num_threads, threads))
        steps.append(partial(sample_reading, run, cold))
        steps += [_ready(task, run, name, settings) for name, task in tasks.items()]
        runs.append(run)
    progress.step(f"measuring {case.name}")
    take_turns(steps, settings.rounds)
    return runs


def filled(case: DecodeCase, operands: Operands) -> CacheStore:
    """A cache that holds all of them. Raises UnableError."""
    store = cache_store.make(Shape(case.kv_heads, case.dim, case.kv_len), case.dtype)
    store.append(operands.k, operands.v)
    return store


def check_store(case: DecodeCase, operands: Operands, result: Array) -> None:
    """Raises UnableError unless a cache gives what the same keys and values give without one."""
    difference = relative_difference(result, qkv.attention(operands.q, operands.k, operands.v))
    if not difference <= TOLERANCES[case.dtype]:
        raise UnableError(f"the cache's result differs by {difference:.1e}")


def in_turn(stores: list[CacheStore], q: Array) -> Callable[[], object]:
    """A call that attends to another of them each time."""
    turn = itertools.cycle(stores)
    return lambda: next(turn).attend(q)


def sample_reading(run: Run, cold: Array) -> None:
    """The peak of decoding: one thread's share of what all of them read together."""
    run.peak.append(native.read_rate(cold, run.threads) / run.threads)


def _ready(task: Task, run: Run, name: str, settings: Settings) -> Callable[[], object]:
    task.calibrate(SAMPLE_SECONDS / (3 if settings.quick else 1))
    run.samples[name] = task.samples
    return task.sample
