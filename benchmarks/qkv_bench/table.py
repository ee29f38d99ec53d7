"""Tables of results, for the terminal and for the documentation."""

from __future__ import annotations

import statistics
from typing import Any

from qkv_bench import cache_bytes
from qkv_bench.dtypes import BFLOAT16
from qkv_bench.results import Results, Run

#: Columns of suites that count bytes, and what they are compared with.
_RATES_OF_BYTES = {"decode": ("GB/s", "of reading"), "rope": ("GB/s", "of copying")}


def cells_of(run: Run, peers: list[str]) -> list[str]:
    """One row of the table of times."""
    cpu, wall = (statistics.median(times) for times in (run.samples["qkv"].cpu, run.samples["qkv"].wall))
    ratios = [run.ratio(peer) for peer in peers]
    return [
        run.case,
        str(run.threads),
        f"{run.rate() / 1e9:.1f}",
        f"{100 * run.share():.0f} %",
        *_dot_cells(run),
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        milliseconds(cpu),
        milliseconds(wall),
    ]


def _dot_cells(run: Run) -> list[str]:
    if run.dtype != BFLOAT16 or run.suite != "attention":
        return []
    share = run.dot_share()
    return ["-" if share is None else f"{100 * share:.0f} %"]


def header_of(runs: list[Run], peers: list[str]) -> list[str]:
    """The names of the columns; of runs that are all of one suite, and all bfloat16 or none."""
    rates = list(_RATES_OF_BYTES.get(runs[0].suite, ("GFLOP/s", "of peak")))
    if _dot_cells(runs[0]):
        rates.append("of dot peak")
    return ["case", "threads", *rates, *(f"{peer} / qkv" for peer in peers), "CPU ms", "wall ms"]


def rows_of(runs: list[Run]) -> list[list[str]]:
    """The whole table of times, its head first."""
    peers = peers_of(runs)
    return [header_of(runs, peers), *(cells_of(run, peers) for run in runs)]


def groups_of(results: Results) -> list[list[Run]]:
    """The runs that make a table each: suites apart, and dtypes where their columns differ."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in results.runs:
        groups.setdefault((run.suite, "" if run.suite in _RATES_OF_BYTES else run.dtype), []).append(run)
    return list(groups.values())


def left_out_lines(runs: list[Run], peers: list[str]) -> list[str]:
    """Why a cell is "-", once for each reason, of these peers."""
    reasons: dict[str, list[str]] = {}
    for run in runs:
        for peer, reason in run.left_out.items():
            if peer in peers:
                reasons.setdefault(f"{peer} {reason}", []).append(run.case)
    return [
        f"Left out: {reason} ({', '.join(f'`{case}`' for case in dict.fromkeys(cases))})."
        for reason, cases in reasons.items()
    ]


def peers_of(runs: list[Run]) -> list[str]:
    """Every peer that some run has."""
    names = dict.fromkeys(name for run in runs for name in run.samples)
    return [name for name in names if name != "qkv"]


def milliseconds(seconds: float) -> str:
    """Three significant digits."""
    value = 1e3 * seconds
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def aligned(rows: list[list[str]]) -> str:
    """Columns of equal width; the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(rows: list[list[str]]) -> str:
    """A table of a page: the first row is its head."""
    head, *body = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """What stands above every table."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return [
        f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['system']}, {machine['date']}",
        f"target {machine['target']}, peak of one thread {machine['peak'] / 1e9:.1f} GFLOP/s{_dot_peak(machine)}, "
        f"{machine['compiler']}, {machine['build_type']}",
        f"{versions}, numpy {machine['numpy']}, Python {machine['python']}",
    ]


def _dot_peak(machine: dict[str, Any]) -> str:
    peak = machine.get("bf16_dot_peak", 0)
    return f" (bfloat16 dot products {peak / 1e9:.1f})" if peak else ", no bfloat16 dot products"


def terminal(results: Results) -> str:
    """All that a person wants to see at the end of a run."""
    parts = ["\n".join(machine_lines(results.machine))]
    if results.machine["busy_cpus"] > 0.2:
        parts.append(
            f"Other programs used {results.machine['busy_cpus']:.1f} CPUs when this began: wall times are theirs too."
        )
    for runs in groups_of(results):
        parts.append(aligned(rows_of(runs)))
        everyone = list(dict.fromkeys(peer for run in runs for peer in run.left_out))
        parts += left_out_lines(runs, everyone)
    for tables in (extra_tables(results), append_tables(results), generate_tables(results)):
        parts += [aligned(rows) for rows in tables]
    return "\n\n".join(parts)


def extra_tables(results: Results) -> list[list[list[str]]]:
    """Those beside the times of the cases: memory, tiny calls, errors, the model; empty ones are left out."""
    tables = []
    if results.memory:
        cases = list(dict.fromkeys(case for row in results.memory.values() for case in row))
        head = ["MiB beyond inputs and output", *results.memory]
        tables.append([head, *([case, *(_mib(row.get(case)) for row in results.memory.values())] for case in cases)])
    if results.tiny:
        rows = [[name, f"{1e6 * statistics.median(times):.2f}"] for name, times in results.tiny.items()]
        tables.append([["call of shape 1,1,1,8 from", "us"], *rows])
    if results.errors:
        rows = [[case, f"{error:.2e}"] for case, error in results.errors.items()]
        tables.append([["relative error against double", "Frobenius"], *rows])
    if results.model:
        rows = []
        for entry in results.model:
            ours, theirs = (statistics.median(entry[name]) for name in ("qkv", "sdpa"))
            ratio = results.model_ratio(entry["batch"], entry["tokens"])
            name = f"batch {entry['batch']}, {entry['tokens']} tokens"
            rows.append([name, milliseconds(ours), milliseconds(theirs), f"{ratio:.2f}"])
        tables.append([["MiniLM forward", "qkv ms", "sdpa ms", "sdpa / qkv"], *rows])
    return tables


def append_tables(results: Results) -> list[list[list[str]]]:
    """What appending a token costs, where it was measured."""
    if not results.append:
        return []
    rows = [[name, f"{1e6 * statistics.median(times):.2f}"] for name, times in results.append.items()]
    return [[["append one token, 8 heads of 128, from", "us"], *rows]]


def generate_tables(results: Results) -> list[list[list[str]]]:
    """What a token costs with and without a cache, and how large caches are; where it was measured."""
    if not results.generate:
        return []
    rows = []
    for entry in results.generate:
        cached, anew = (statistics.median(entry[name]) for name in ("cached", "recomputed"))
        rows.append([str(entry["length"]), milliseconds(cached), milliseconds(anew), f"{anew / cached:.0f}"])
    head = ["ms a token, at a length of", "with a cache", "without", "without / with"]
    return [[head, *rows], _bytes_table()]


def _bytes_table() -> list[list[str]]:
    """Of one layer's cache, by who shares keys and values."""
    sizes = cache_bytes.by_layout()
    head = [f"MiB of {cache_bytes.TOKENS} tokens, {cache_bytes.HEADS} query heads of {cache_bytes.DIM}"]
    rows = [[name, *(f"{size / 2**20:.1f}" for size in row.values())] for name, row in sizes.items()]
    return [[*head, *next(iter(sizes.values()))], *rows]


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.2f}"
