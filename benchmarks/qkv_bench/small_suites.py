"""The suites beside attention, each as results with the machine they are of."""

from __future__ import annotations

import sys

from qkv_bench import append, decode, generate, ragged, rope, suite
from qkv_bench.results import Results
from qkv_bench.runners import TorchRunner, UnableError


def ragged_batch(quick: bool = False) -> Results:
    """`./dev bench ragged`."""
    with suite.described() as results:
        try:
            results.runs = ragged.measure(3 if quick else 5)
        except UnableError as error:
            print(f"bench: ragged: {error}, left out", file=sys.stderr)
    return results


def decoding(settings: decode.Settings) -> Results:
    """`./dev bench decode`; with all of its cases, what appending costs."""
    decode.plan(settings)  # a wrong --only is told before anything is measured
    with suite.described((TorchRunner,) if settings.peers else ()) as results:
        results.runs = decode.measure(settings)
        if not settings.only:
            results.append = append.measure(settings.rounds)
    return results


def rotating(only: str, quick: bool = False) -> Results:
    """`./dev bench rope`."""
    rope.plan(only)  # a wrong --only is told before anything is measured
    with suite.described() as results:
        results.runs = rope.measure(only, 3 if quick else 5)
    return results


def generating(quick: bool = False) -> Results:
    """`./dev bench generate`."""
    with suite.described() as results:
        try:
            results.generate = generate.measure(quick)
        except UnableError as error:
            print(f"bench: generate: {error}, left out", file=sys.stderr)
    return results
