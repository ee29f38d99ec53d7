"""A ragged batch without padding, beside the same sequences padded: whether the time follows the visible work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

import qkv
from qkv_bench import native
from qkv_bench.cases import Array
from qkv_bench.clock import PEAK_SECONDS, SAMPLE_SECONDS, Task, take_turns
from qkv_bench.ragged_case import DIM, HEADS, LENGTHS, LONGEST, PADDED, RAGGED, operations
from qkv_bench.results import Run
from qkv_bench.runners import TOLERANCE, UnableError
from qkv_bench.storage import relative_difference

SUITE = "ragged"


def measure(rounds: int) -> list[Run]:
    """Both with one thread, in the same rounds. Raises UnableError where they compute different things."""
    threads_before = qkv.num_threads()
    qkv.set_num_threads(1)
    calls = _calls()
    runs: list[Run] = []
    steps: list[Callable[[], object]] = []
    for name, call in calls.items():
        run = Run(name, 1, qkv.target(), operations(name), suite=SUITE)
        task = Task(call)
        task.calibrate(SAMPLE_SECONDS)
        run.samples["qkv"] = task.samples
        steps += [partial(_sample_peak, run), task.sample]
        runs.append(run)
    take_turns(steps, rounds)
    qkv.set_num_threads(threads_before)
    return runs


def _sample_peak(run: Run) -> None:
    run.peak.append(native.fma_peak(run.target, PEAK_SECONDS))


def rows_without_padding(array: Array) -> Array:
    """[tokens, heads, dim] of [sequences, heads, longest, dim]."""
    return np.concatenate([array[i, :, :length].transpose(1, 0, 2) for i, length in enumerate(LENGTHS)])


def _calls() -> dict[str, Callable[[], object]]:
    """The same sequences in both forms, and a look at whether they come to the same."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((len(LENGTHS), HEADS, LONGEST, DIM), dtype=np.float32) for _ in range(3))
    packed_q, packed_k, packed_v = (rows_without_padding(array) for array in (q, k, v))
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    lengths = np.array(LENGTHS)

    def ragged() -> Array:
        out: Array = qkv.attention_varlen(packed_q, packed_k, packed_v, starts, starts)
        return out

    def padded() -> Array:
        return qkv.attention(q, k, v, kv_lens=lengths)

    if not relative_difference(ragged(), rows_without_padding(padded())) <= TOLERANCE:
        raise UnableError("a ragged batch gives another result than the padded one")
    return {RAGGED: ragged, PADDED: padded}
