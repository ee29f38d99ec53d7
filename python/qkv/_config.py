"""Threads, instruction sets, and what this build is."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv import _core

__all__ = ["available_targets", "config", "num_threads", "set_num_threads", "set_target", "show_config", "target"]


def set_num_threads(num_threads: int) -> None:
    """Sets how many threads one call may use, the caller's among them; results have the same bits for any number.

    The default, in this order: the environment's QKV_NUM_THREADS, OMP_NUM_THREADS, the CPUs that the process may use.

    Parameters
    ----------
    num_threads : int
        At least 1.

    Raises
    ------
    ValueError
        Below 1, or beyond 64 bits.
    TypeError
        No int.
    """
    _core.set_num_threads(num_threads)


def num_threads() -> int:
    """How many threads one call may use."""
    return _core.num_threads()


def available_targets() -> list[str]:
    """The instruction sets that this build and this CPU both have, best first; the last is "reference"."""
    return list(_core.available_targets())


def target() -> str:
    """The instruction set in use: the best, or what the environment's QKV_TARGET or `set_target` forced."""
    return _core.target()


def set_target(name: str) -> None:
    """Forces one of `available_targets`; "" goes back to the best. Call it while no other thread computes.

    Raises
    ------
    ValueError
        A name that is not available.
    TypeError
        No str.
    """
    _core.set_target(name)


def config() -> dict[str, Any]:
    """How this library was built and where it runs.

    Returns
    -------
    dict
        version, target, targets, threads, compiler, build_type, cpu, highway, numpy.
    """
    return {**_core.config(), "numpy": np.__version__}


def show_config() -> None:
    """Prints `config`, one line each: what a bug report should have."""
    entries = config()
    width = max(map(len, entries))
    for name, value in entries.items():
        text = ", ".join(value) if isinstance(value, list) else value
        print(f"{name:<{width}}  {text}")
