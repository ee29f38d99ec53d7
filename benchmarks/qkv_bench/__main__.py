"""The command line of `./dev bench`.

What a verb needs is imported when it runs: help and reports need neither NumPy nor a built qkv.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

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
CHECK = """\
Measures all cases in 5 rounds, and what stands beside them, and compares the medians with benchmarks/targets.json.

Prints a line for each target: what was measured, what is wanted, and whether it is ok, short, or not measurable here
(another instruction set, a missing peer, a machine that is too busy for times of several threads). Targets of another
instruction set that this CPU has run in a process with QKV_TARGET set. Exit status 1: a target is short.
"""
CHECK_END = """\
examples:
  ./dev bench check --json build/bench.json
  ./dev bench check --factor 0.6              on a machine shared with others: lower limits are multiplied by it, upper
                                              ones divided; those of memory and accuracy stay as they are
  ./dev bench check --from build/bench.json   another look at the same figures
"""
REPORT = """\
Writes the tables of docs/performance.md, between its markers, and the chart docs/img/attention.svg from a JSON file of
`./dev bench attention --json` or `./dev bench check --json`. Whatever stands outside the markers stays as it is.
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
    one.add_argument("--no-peers", action="store_true", help="qkv alone: a quarter of the time")
    one.set_defaults(run=run_attention)

    two = verbs.add_parser(
        "check", help="measure and compare", description=CHECK, epilog=CHECK_END, formatter_class=style
    )
    two.add_argument("--json", type=Path, metavar="FILE", help="also write every sample into FILE")
    two.add_argument("--from", dest="results", type=Path, metavar="FILE", help="judge this result, measure nothing")
    two.add_argument("--factor", type=_factor, default=1.0, metavar="F", help="above 0, at most 1 (default)")
    two.add_argument("--quick", action="store_true", help="3 short rounds; what they leave out is not judged")
    two.set_defaults(run=run_check)

    three = verbs.add_parser("report", help="write the documentation", description=REPORT, formatter_class=style)
    three.add_argument("results", type=Path, metavar="FILE", help="what --json has written")
    three.set_defaults(run=run_report)
    return parser


def _factor(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("above 0, at most 1")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def run_attention(options: argparse.Namespace) -> int:
    """`./dev bench attention`."""
    from qkv_bench import suite, table
    from qkv_bench.attention import Settings

    settings = Settings(options.only, tuple(options.threads), options.quick, suite.cpus(), not options.no_peers)
    results = suite.run(settings, extras=not options.only)
    print(table.terminal(results))
    _save(results, options.json)
    return 0


def run_check(options: argparse.Namespace) -> int:
    """`./dev bench check`."""
    from qkv_bench import check, suite, table, targets
    from qkv_bench.attention import Settings

    wanted = targets.load()
    if options.results:
        results = Results.load(options.results)
    else:
        results = check.measure(wanted, Settings(quick=options.quick, cpus=suite.cpus()))
    _save(results, options.json)
    verdicts = check.judge(wanted, results, options.factor)
    print("\n".join(table.machine_lines(results.machine)) + "\n")
    print(check.report(verdicts, options.factor))
    return check.exit_code(verdicts)


def run_report(options: argparse.Namespace) -> int:
    """`./dev bench report`."""
    from qkv_bench import report

    for path in report.write(Results.load(options.results)):
        print(f"Written: {path}")
    return 0


def _save(results: Results, path: Path | None) -> None:
    if path:
        results.save(path)
        print(f"Every sample is in {path}\n")


def main() -> int:
    """Runs a verb; 2 for what a person can put right."""
    options = _parser().parse_args()
    try:
        if path := getattr(options, "json", None):  # not after minutes of measuring
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except (MissingLibraryError, OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
