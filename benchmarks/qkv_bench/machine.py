"""What a figure depends on: the machine, the versions, and who else is using the processor."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

import numpy as np

import qkv
from qkv_bench import native
from qkv_bench.runners import Runner

#: CPUs in use by others beyond which times of several threads say little.
QUIET_LOAD = 0.2


def describe(runners: list[Runner]) -> dict[str, Any]:
    """For the head of the tables and the JSON."""
    config = qkv.config()
    return {
        "cpu": config["cpu"],
        "cpus": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "compiler": config["compiler"],
        "build_type": config["build_type"],
        "target": config["target"],
        "targets": config["targets"],
        "versions": {runner.name: runner.version for runner in runners},
        "peak": native.fma_peak(config["target"], 0.1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "busy_cpus": busy_cpus(),
    }


def busy_cpus(seconds: float = 0.5) -> float:
    """How many CPUs other programs, and other machines on the same hardware, use while this one waits; 0 if unknown."""
    try:
        before = _busy_ticks()
        time.sleep(seconds)
        return (_busy_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds
    except OSError:
        return 0.0


def _busy_ticks() -> int:
    """User, nice, system, irq, softirq and steal of /proc/stat's first line."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    return sum(fields[i] for i in (0, 1, 2, 5, 6, 7))
