"""libqkv_bench: the peak of one thread, and the cost of a call from C++."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class MissingLibraryError(Exception):
    """The library has not been built; the text says how to build it."""


def path_of_library() -> Path:
    """Where `./dev bench` builds it, or where QKV_BENCH_LIBRARY says that it is."""
    return Path(os.environ.get("QKV_BENCH_LIBRARY") or ROOT / "build/release/benchmarks/libqkv_bench.so")


@cache
def _library() -> ctypes.CDLL:
    path = path_of_library()
    if not path.is_file():
        raise MissingLibraryError(f"{path} is missing: ./dev bench builds it")
    library = ctypes.CDLL(str(path))
    library.qkv_bench_fma_peak.argtypes = [ctypes.c_char_p, ctypes.c_double]
    library.qkv_bench_fma_peak.restype = ctypes.c_double
    library.qkv_bench_tiny_call.argtypes = [ctypes.c_int64]
    library.qkv_bench_tiny_call.restype = ctypes.c_double
    library.qkv_bench_target.restype = ctypes.c_char_p
    return library


def fma_peak(target: str, seconds: float = 0.01) -> float:
    """Float operations a second of one thread that only multiplies and adds, with the vectors of that target."""
    return float(_library().qkv_bench_fma_peak(target.encode(), seconds))


def tiny_call(calls: int) -> float:
    """Seconds of CPU time of one call of qkv::attention from C++ with shapes [1, 1, 1, 8]."""
    return float(_library().qkv_bench_tiny_call(calls))


def target() -> str:
    """The target of the library's own copy of qkv; QKV_TARGET decides it as it does everywhere."""
    name: bytes = _library().qkv_bench_target()
    return name.decode()
