"""What a call costs before it computes anything: shapes [1, 1, 1, 8], from C++, NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import qkv
from qkv_bench import native
from qkv_bench.clock import Task, take_turns
from qkv_bench.runners import UnableError, import_peer

CPP_CALLS = 20000


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of CPU time of a call, one entry a round; without "torch" where it is not installed."""
    threads_before = qkv.num_threads()
    qkv.set_num_threads(1)
    array = np.full((1, 1, 1, 8), 0.5, np.float32)
    tasks = {"numpy": Task(lambda: qkv.attention(array, array, array))}
    try:
        tensor = import_peer("torch").from_numpy(array)
        tasks["torch"] = Task(lambda: qkv.attention(tensor, tensor, tensor))
    except UnableError:
        pass
    for task in tasks.values():
        task.calibrate()
    native_times: list[float] = []
    native.tiny_call(CPP_CALLS)
    steps: list[Callable[[], object]] = [lambda: native_times.append(native.tiny_call(CPP_CALLS))]
    take_turns([*steps, *(task.sample for task in tasks.values())], rounds)
    qkv.set_num_threads(threads_before)
    return {"c++": native_times, **{name: task.samples.cpu for name, task in tasks.items()}}
