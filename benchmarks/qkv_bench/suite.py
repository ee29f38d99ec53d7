"""One whole measurement: the cases, and beside them memory, tiny calls, accuracy and a model."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from qkv_bench import accuracy, attention, machine, memory, model, tiny
from qkv_bench.attention import Settings
from qkv_bench.gradient_runners import find_gradient_runners
from qkv_bench.progress import Progress
from qkv_bench.results import Results, Run
from qkv_bench.runners import QkvRunner, Runner, UnableError, find_runners


def cpus() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def described(peers: tuple[type[Runner], ...] = ()) -> Iterator[Results]:
    """Results of this machine, to be filled; how busy it was is known when they are."""
    runners: list[Runner] = [QkvRunner()]
    for peer in peers:
        with contextlib.suppress(UnableError):
            runners.append(peer())
    results = Results(machine=machine.describe(runners))
    yield results
    results.machine["busy_cpus"] = max(results.machine["busy_cpus"], machine.busy_cpus())


def run(settings: Settings, extras: bool) -> Results:
    """Measures what the settings choose; `extras` are what stands beside the cases. Says what is missing on stderr."""
    attention.plan(settings)  # a wrong --only is told before anything is measured
    find = find_runners if settings.direction == "forward" else find_gradient_runners
    runners, missing = find(settings.peers, settings.dtype)
    for name, reason in missing.items():
        print(f"bench: {name}: {reason}, left out", file=sys.stderr)
    results = Results(machine=machine.describe(runners))
    results.runs = attention.measure(settings, runners)
    if extras:
        _measure_extras(results, settings, [runner.name for runner in runners])
    results.machine["busy_cpus"] = max(results.machine["busy_cpus"], machine.busy_cpus())
    return results


def _measure_extras(results: Results, settings: Settings, runners: list[str]) -> None:
    progress = Progress(4)
    progress.step("tiny calls")
    results.tiny = tiny.measure(settings.rounds)
    progress.step("memory")
    try:
        results.memory = memory.measure(runners, memory.CASES[1:] if settings.quick else memory.CASES)
    except OSError as error:
        print(f"bench: memory: {error}, left out", file=sys.stderr)
    progress.step("accuracy")
    results.errors = accuracy.measure(accuracy.CASES[:1] if settings.quick else accuracy.CASES)
    progress.step("MiniLM")
    try:
        results.model = model.measure(settings.rounds)
    except UnableError as error:
        print(f"bench: MiniLM: {error}, left out", file=sys.stderr)
    progress.clear()


def run_on_target(target: str, settings: Settings) -> list[Run]:
    """The cases by qkv alone on another target of this CPU, in a process of its own, as a user would force it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, "-m", "qkv_bench", "attention", "--no-peers", "--json", str(path)]
        command += [
            "--dtype",
            settings.dtype,
            "--pass",
            settings.direction,
            "--only",
            settings.only,
            "--threads",
            *map(str, settings.threads or (1,)),
        ]
        if settings.quick:
            command.append("--quick")
        environment = {**os.environ, "QKV_TARGET": target}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise OSError(f"measuring with QKV_TARGET={target} failed:\n{done.stdout[-1000:]}")
        return Results.load(path).runs
