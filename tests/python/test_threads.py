"""Threads, targets and the interpreter lock."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits

import qkv


@pytest.fixture(autouse=True)
def _same_number_of_threads_after() -> Iterator[None]:
    before = qkv.num_threads()
    yield
    qkv.set_num_threads(before)


def inputs(rng: np.random.Generator, length: int = 40) -> list[np.ndarray]:
    return list(rng.standard_normal((3, 2, 3, length, 16)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_same_bits_for_any_number_of_threads(count: int, target: str, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    options: dict[str, Any] = {"causal": True, "return_lse": True, "return_weights": True}
    qkv.set_num_threads(1)
    expected = qkv.attention(*arrays, **options)
    qkv.set_num_threads(count)
    assert qkv.num_threads() == count
    for actual, one in zip(qkv.attention(*arrays, **options), expected, strict=True):
        assert_same_bits(actual, one)


def test_callers_at_once(target: str, rng: np.random.Generator) -> None:
    calls = [inputs(rng, length) for length in range(1, 250, 8)]  # the longer ones take several threads each
    expected = [qkv.attention(*arrays, causal=True) for arrays in calls]
    with ThreadPoolExecutor(8) as pool:
        for actual, one in zip(
            pool.map(lambda arrays: qkv.attention(*arrays, causal=True), calls * 3), expected * 3, strict=True
        ):
            assert_same_bits(actual, one)


@pytest.mark.parametrize("shape", [(1, 1), (600, 1), (1, 600), (600, 600), (3, 1, 1), (2, 1, 600, 1)], ids=str)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_same_bits_of_gradients_for_any_number_of_threads(
    count: int, shape: tuple[int, ...], target: str, rng: np.random.Generator
) -> None:
    q, k, v = inputs(rng, 600)
    sinks = np.ones(3, np.float32)
    bias = rng.standard_normal(shape).astype(np.float32)
    options: dict[str, Any] = {"causal": True, "sinks": sinks, "bias": bias}
    out, lse = qkv.attention(q, k, v, return_lse=True, **options)
    need = ("q", "k", "v", "bias", "sinks")
    qkv.set_num_threads(1)
    expected = qkv.attention_backward(q, q, k, v, out, lse, need=need, **options)
    qkv.set_num_threads(count)
    for actual, one in zip(qkv.attention_backward(q, q, k, v, out, lse, need=need, **options), expected, strict=True):
        assert_same_bits(actual, one)


@contextlib.contextmanager
def counting_beside() -> Iterator[Callable[[], int]]:
    """How far another Python thread has counted. Without a switch interval, it only runs while a call lets it."""
    count = 0
    stop = threading.Event()

    def counter() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0)  # gives the lock back, since nobody will ask for it

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=counter)
    try:
        sys.setswitchinterval(60)
        thread.start()
        yield lambda: count
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("backward", [False, True])
def test_interpreter_lock_is_released(backward: bool, rng: np.random.Generator) -> None:
    qkv.set_num_threads(1)
    with counting_beside() as count:
        length, elapsed, counted = 256, 0.0, 0
        while elapsed < 0.05:
            arrays = inputs(rng, length)
            saved = (arrays[0], *arrays, *qkv.attention(*arrays, return_lse=True))
            before, start = count(), time.perf_counter()
            if backward:
                qkv.attention_backward(*saved)
            else:
                qkv.attention(*arrays)
            counted, elapsed = count() - before, time.perf_counter() - start
            length *= 2
    assert counted > 100


def test_interpreter_lock_is_released_by_buckets() -> None:
    distances = np.arange(1 << 22)
    with counting_beside() as count:
        before = count()
        qkv.position.t5_bucket(distances)
        counted = count() - before
    assert counted > 100


@pytest.mark.parametrize(("kv_len", "kept"), [(8, True), (4096, False)])
def test_interpreter_lock_is_kept_by_a_tiny_call(kv_len: int, kept: bool) -> None:
    q = np.ones((1, 1, 1, 8), np.float32)
    k = np.ones((1, 1, kv_len, 8), np.float32)
    out, lse = qkv.attention(q, k, k, return_lse=True)  # the first call imports, and may hand the lock over
    qkv.attention_backward(out, q, k, k, out, lse)
    for run in (lambda: qkv.attention(q, k, k), lambda: qkv.attention_backward(out, q, k, k, out, lse)):
        with counting_beside() as count:
            before = count()
            for _ in range(1000):
                run()
            counted = count() - before
        assert (counted == 0) is kept


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (0, "expected at least 1, got 0"),
        (-3, "expected at least 1, got -3"),
        (10**400, "an int of 1329 bits does not fit 64 bits"),
        (-(10**5000), "an int of 16610 bits does not fit 64 bits"),  # Python would not print it
    ],
    ids=["0", "-3", "huge", "unprintable"],
)
def test_bad_number_of_threads(bad: int, text: str) -> None:
    with pytest.raises(qkv.ValueError, match=rf"^num_threads: {text}$"):
        qkv.set_num_threads(bad)


@pytest.mark.parametrize("bad", [1.5, None, "2", True])
def test_number_of_threads_of_another_type(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"^num_threads: expected an int, got"):
        qkv.set_num_threads(bad)


def test_unknown_target() -> None:
    before = qkv.target()
    for bad, shown in {"pentium": "pentium", "x" * 5000: "x" * 57 + "...", "avx2\0": r"'avx2\x00'"}.items():
        with pytest.raises(qkv.ValueError) as info:
            qkv.set_target(bad)
        assert str(info.value) == f"name: expected one of {', '.join(qkv.available_targets())}, got '{shown}'"
    for other, kind in ((None, "NoneType"), (1, "int 1"), (b"avx2", "bytes")):
        with pytest.raises(TypeError, match=rf"^name: expected a str, got {kind}$"):
            qkv.set_target(other)  # type: ignore[arg-type]
    assert qkv.target() == before


def test_targets(target: str) -> None:
    assert qkv.target() == target
    assert qkv.available_targets()[-1] == "reference"
    assert target in qkv.available_targets()


def run(code: str, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return finished.stdout.strip()


def test_environment() -> None:
    show = "import qkv; print(qkv.target(), qkv.num_threads())"
    assert run(show, QKV_TARGET="reference", QKV_NUM_THREADS="3") == "reference 3"
    assert run(show, QKV_TARGET="reference", QKV_NUM_THREADS="", OMP_NUM_THREADS="5") == "reference 5"


def test_reference_target_is_the_reference(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    before = qkv.target()
    qkv.set_target("reference")
    forced = qkv.attention(*arrays, causal=True)
    qkv.set_target(before)
    assert_same_bits(forced, qkv.reference.attention(*arrays, causal=True))


def test_after_fork() -> None:
    code = (
        "import os, numpy as np, qkv\n"
        "a = np.ones((1, 4, 64, 16), np.float32)\n"
        "qkv.set_num_threads(2); qkv.attention(a, a, a)\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0 if np.array_equal(qkv.attention(a, a, a), a) else 1)\n"
        "print(os.waitpid(pid, 0)[1])"
    )
    assert run(code) == "0"
