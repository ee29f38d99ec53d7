"""Tables of results, for the terminal and for the documentation."""

from __future__ import annotations

import statistics
from typing import Any

from qkv_bench.results import Results, Run


def cells_of(run: Run, peers: list[str]) -> list[str]:
    """One row of the table of times."""
    cpu, wall = (statistics.median(times) for times in (run.samples["qkv"].cpu, run.samples["qkv"].wall))
    ratios = [run.ratio(peer) for peer in peers]
    return [
        run.case,
        str(run.threads),
        f"{run.rate() / 1e9:.1f}",
        f"{100 * run.share():.0f} %",
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        milliseconds(cpu),
        milliseconds(wall),
    ]


def header_of(peers: list[str]) -> list[str]:
    """The names of the columns."""
    return ["case", "threads", "GFLOP/s", "of peak", *(f"{peer} / qkv" for peer in peers), "CPU ms", "wall ms"]


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
        f"target {machine['target']}, peak of one thread {machine['peak'] / 1e9:.1f} GFLOP/s, "
        f"{machine['compiler']}, {machine['build_type']}",
        f"{versions}, numpy {machine['numpy']}, Python {machine['python']}",
    ]


def terminal(results: Results) -> str:
    """All that a person wants to see at the end of a run."""
    parts = ["\n".join(machine_lines(results.machine))]
    if results.machine["busy_cpus"] > 0.2:
        parts.append(
            f"Other programs used {results.machine['busy_cpus']:.1f} CPUs when this began: wall times are theirs too."
        )
    if results.runs:
        peers = peers_of(results.runs)
        parts.append(aligned([header_of(peers), *(cells_of(run, peers) for run in results.runs)]))
    parts += [aligned(rows) for rows in extra_tables(results)]
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


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.2f}"
