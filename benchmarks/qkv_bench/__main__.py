"""The command line of `./dev bench`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from qkv_bench import attention, machine, runners, table
from qkv_bench.native import MissingLibraryError
from qkv_bench.results import Results

DESCRIPTION = """\
Measures qkv on this machine, beside PyTorch, ONNX Runtime and OpenVINO where they are installed.

  attention   times of all cases, and with them memory, tiny calls, accuracy and a whole model
  check       the same, compared with the figures that this project holds itself to (benchmarks/targets.json)
  report      writes the tables and the chart of docs/performance.md from a JSON file of one of these
"""
ATTENTION = """\
Times attention in float32, shape by shape and option by option.

Every runner's result is compared with qkv's before it is timed. Then all runners and the peak of the machine take
turns, 5 rounds of at least 30 ms each; figures are medians over the rounds. With one thread the time is CPU time of the
process, so that other programs hardly disturb it; with more it is wall time, which wants a quiet machine.

  GFLOP/s      4 * batch * heads * visible pairs * dim operations a second: hidden keys do not count as work
  of peak      share of what one thread reaches in the same round if it only multiplies and adds, times threads
  torch / qkv  the other's time / ours: above 1 we are faster
"""
ATTENTION_END = """\
examples:
  ./dev bench attention --quick                      a few minutes, without the longest sequences
  ./dev bench attention --only 'x2048x.*causal'      some cases; the table names them all
  ./dev bench attention --threads 1 2 4 --only 4096
  QKV_TARGET=avx2 ./dev bench attention              another instruction set, with its own peak
"""


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="./dev bench", description=DESCRIPTION, formatter_class=style)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    one = verbs.add_parser(
        "attention", help="measure and print", description=ATTENTION, epilog=ATTENTION_END, formatter_class=style
    )
    one.add_argument("--json", type=Path, metavar="FILE", help="also write every sample into FILE")
    one.add_argument("--quick", action="store_true", help="3 short rounds, without the longest sequences")
    one.add_argument("--only", default="", metavar="REGEX", help="the cases whose name matches, and nothing else")
    one.add_argument(
        "--threads", type=_positive, nargs="+", default=[], metavar="N", help="default: 1, and 2 for the long shapes"
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def run_attention(options: argparse.Namespace) -> int:
    """`./dev bench attention`."""
    found, missing = runners.find_runners()
    for name, reason in missing.items():
        print(f"{name}: {reason}, left out")
    cpus = len(os.sched_getaffinity(0))
    settings = attention.Settings(options.only, tuple(options.threads), options.quick, cpus)
    results = Results(machine=machine.describe(found))
    results.runs = attention.measure(settings, found)
    print(table.terminal(results))
    if options.json:
        results.save(options.json)
        print(f"\nEvery sample is in {options.json}")
    return 0


def main() -> int:
    """Runs a verb; 2 for what a person can put right."""
    options = _parser().parse_args()
    try:
        return run_attention(options)
    except (MissingLibraryError, OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
