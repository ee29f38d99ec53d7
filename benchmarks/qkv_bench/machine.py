"""What a figure depends on: the machine, the versions, and who else is using the processor."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
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
        "versions": {runner.name: runner.version for runner in runners if " " not in runner.name},
        "peak": native.fma_peak(config["target"], 0.1),
        "bf16_dot_peak": native.bf16_dot_peak(0.1),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "busy_cpus": busy_cpus(),
    }


def last_level_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """The largest of the processor's caches; 32 MiB where it does not say."""
    sizes = [re.fullmatch(r"(\d+)K", path.read_text().strip()) for path in caches.glob("index*/size")]
    return max((1024 * int(size[1]) for size in sizes if size), default=32 << 20)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Memory that is free to use without swapping; all that one could wish for where the system does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text() if meminfo.is_file() else "", re.MULTILINE)
    return 1024 * int(match[1]) if match else 1 << 62


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
