"""libqkv_bench: the limits of arithmetic and of memory, and the cost of a call from C++."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

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
    library.qkv_bench_bf16_dot_peak.argtypes = [ctypes.c_double]
    library.qkv_bench_bf16_dot_peak.restype = ctypes.c_double
    library.qkv_bench_read_rate.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    library.qkv_bench_read_rate.restype = ctypes.c_double
    library.qkv_bench_copy_rate.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    library.qkv_bench_copy_rate.restype = ctypes.c_double
    library.qkv_bench_tiny_call.argtypes = [ctypes.c_int64]
    library.qkv_bench_tiny_call.restype = ctypes.c_double
    library.qkv_bench_target.restype = ctypes.c_char_p
    return library


def fma_peak(target: str, seconds: float = 0.01) -> float:
    """Float operations a second of one thread that only multiplies and adds, with the vectors of that target."""
    return float(_library().qkv_bench_fma_peak(target.encode(), seconds))


def bf16_dot_peak(seconds: float = 0.01) -> float:
    """Operations a second of one thread that only adds up products of bfloat16; 0 on a CPU without that instruction."""
    return float(_library().qkv_bench_bf16_dot_peak(seconds))


def read_rate(memory: npt.NDArray[Any], threads: int) -> float:
    """Bytes a second at which so many threads read that array once: of CPU time for one, on the wall for more."""
    return float(_library().qkv_bench_read_rate(memory.ctypes.data, memory.nbytes, threads))


def copy_rate(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> float:
    """Bytes a second, read and written, at which one thread makes the target of the source, by its CPU time."""
    return float(_library().qkv_bench_copy_rate(source.ctypes.data, target.ctypes.data, source.nbytes))


def tiny_call(calls: int) -> float:
    """Seconds of CPU time of one call of qkv::attention from C++ with shapes [1, 1, 1, 8]."""
    return float(_library().qkv_bench_tiny_call(calls))


def append_call(calls: int, *, bfloat16: bool = False, rope: bool = False, ring: bool = False) -> float | None:
    """Seconds of CPU time of appending one token to a cache from C++; None from a library that has no such caches.

    A ring has 16 slots, which stay in the processor's caches.
    """
    try:
        function = _library().qkv_bench_append_token
    except AttributeError:
        return None
    function.argtypes, function.restype = [ctypes.c_int64, *[ctypes.c_int] * 3], ctypes.c_double
    return float(function(calls, bfloat16, rope, ring))


def target() -> str:
    """The target of the library's own copy of qkv; QKV_TARGET decides it as it does everywhere."""
    name: bytes = _library().qkv_bench_target()
    return name.decode()
