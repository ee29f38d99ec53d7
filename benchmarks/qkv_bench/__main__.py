"""The command line of `./dev bench`.

What a verb needs is imported when it runs: help and reports need neither NumPy nor a built qkv.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qkv_bench import texts
from qkv_bench.dtypes import DTYPES, FLOAT32
from qkv_bench.native import MissingLibraryError

if TYPE_CHECKING:
    from qkv_bench.results import Results

Run = Callable[[argparse.Namespace], int]


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="./dev bench", description=texts.DESCRIPTION, formatter_class=style)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, run: Run, short: str, long: str, end: str = "") -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=short, description=long, epilog=end, formatter_class=style)
        made.set_defaults(run=run)
        return made

    _attention_options(verb("attention", run_attention, "measure and print", texts.ATTENTION, texts.ATTENTION_END))
    _measuring_options(verb("ragged", run_ragged, "sequences of unequal length", texts.RAGGED), "3 rounds")
    _decode_options(verb("decode", run_decode, "one row against a cache", texts.DECODE, texts.DECODE_END))
    quick = "3 rounds, without the longest sequence"
    _measuring_options(verb("generate", run_generate, "with and without a cache", texts.GENERATE), quick)
    rope = verb("rope", run_rope, "rotary positions", texts.ROPE)
    _measuring_options(rope, "3 rounds")
    rope.add_argument("--only", default="", metavar="REGEX", help="the cases whose name matches, and nothing else")
    _check_options(verb("check", run_check, "measure and compare", texts.CHECK, texts.CHECK_END))
    report = verb("report", run_report, "write the documentation", texts.REPORT, texts.REPORT_END)
    report.add_argument("results", type=Path, nargs="+", metavar="FILE", help="what --json has written")
    return parser


def _measuring_options(parser: argparse.ArgumentParser, quick: str) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample into FILE")
    parser.add_argument("--quick", action="store_true", help=quick)


def _attention_options(parser: argparse.ArgumentParser) -> None:
    _measuring_options(parser, "3 short rounds, without the longest sequences")
    parser.add_argument("--dtype", choices=DTYPES, default=FLOAT32, help="of q, k and v (default: %(default)s)")
    parser.add_argument(
        "--pass",
        dest="direction",
        choices=("forward", "backward", "both"),
        default="forward",
        help="attention, its gradients by q, k and v, or both (default: %(default)s)",
    )
    parser.add_argument("--only", default="", metavar="REGEX", help="the cases whose name matches, and nothing else")
    parser.add_argument(
        "--threads", type=_positive, nargs="+", default=[], metavar="N", help="default: 1, and 2 for the long shapes"
    )
    parser.add_argument("--no-peers", action="store_true", help="qkv alone: a quarter of the time")


def _decode_options(parser: argparse.ArgumentParser) -> None:
    _measuring_options(parser, "3 short rounds, without the longest caches")
    parser.add_argument("--only", default="", metavar="REGEX", help="the cases whose name matches, and nothing else")
    parser.add_argument("--threads", type=_positive, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    parser.add_argument("--no-peers", action="store_true", help="without PyTorch")


def _check_options(parser: argparse.ArgumentParser) -> None:
    _measuring_options(parser, "3 short rounds; what they leave out is not judged")
    files = "judge these results, measure nothing"
    parser.add_argument("--from", dest="results", type=Path, nargs="+", metavar="FILE", help=files)
    parser.add_argument("--factor", type=_factor, default=1.0, metavar="F", help="above 0, at most 1 (default)")


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
    from qkv_bench import suite
    from qkv_bench.attention import Settings

    peers, threads = not options.no_peers, tuple(options.threads)
    settings = Settings(options.only, threads, options.quick, suite.cpus(), peers, options.dtype, options.direction)
    extras = not options.only and options.dtype == FLOAT32 and options.direction == "forward"
    return _shown(suite.run(settings, extras=extras), options)


def run_ragged(options: argparse.Namespace) -> int:
    """`./dev bench ragged`."""
    from qkv_bench import ragged_case, small_suites

    print(ragged_case.description())
    return _shown(small_suites.ragged_batch(options.quick), options)


def run_decode(options: argparse.Namespace) -> int:
    """`./dev bench decode`."""
    from qkv_bench import decode, small_suites

    settings = decode.Settings(options.only, tuple(options.threads), options.quick, not options.no_peers)
    return _shown(small_suites.decoding(settings), options)


def run_generate(options: argparse.Namespace) -> int:
    """`./dev bench generate`."""
    from qkv_bench import small_suites

    return _shown(small_suites.generating(options.quick), options)


def run_rope(options: argparse.Namespace) -> int:
    """`./dev bench rope`."""
    from qkv_bench import small_suites

    return _shown(small_suites.rotating(options.only, options.quick), options)


def run_check(options: argparse.Namespace) -> int:
    """`./dev bench check`."""
    from qkv_bench import check, everything, suite, table, targets
    from qkv_bench.attention import Settings

    wanted = targets.load()
    if options.results:
        results = _loaded(options.results)
    else:
        results = everything.measure(wanted, Settings(quick=options.quick, cpus=suite.cpus()))
    _save(results, options.json)
    verdicts = check.judge(wanted, results, options.factor)
    print("\n".join(table.machine_lines(results.machine)) + "\n")
    print(check.report(verdicts, options.factor))
    return check.exit_code(verdicts)


def run_report(options: argparse.Namespace) -> int:
    """`./dev bench report`."""
    from qkv_bench import report

    for path in report.write(_loaded(options.results)):
        print(f"Written: {path}")
    return 0


def _loaded(paths: list[Path]) -> Results:
    from qkv_bench.results import Results

    return Results.merged([Results.load(path) for path in paths])


def _shown(results: Results, options: argparse.Namespace) -> int:
    from qkv_bench import table

    print(table.terminal(results))
    _save(results, options.json)
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
