"""Writes results into docs/performance.md, between its markers, and draws the chart beside it."""

from __future__ import annotations

import re
from pathlib import Path

from qkv_bench import chart, table
from qkv_bench.dtypes import FLOAT32
from qkv_bench.native import ROOT
from qkv_bench.results import Results, Run

PAGE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "img" / "attention.svg"


def write(results: Results, page: Path = PAGE, picture: Path = CHART) -> list[Path]:
    """Replaces what stands between the markers and the chart; returns what was written.

    What was not measured stays as it is. Raises ValueError where the page lacks a marker, before anything is written.
    """
    text = page.read_text()
    for name, content in sections_of(results).items():
        text = replaced(text, name, content)
    page.write_text(text)
    if not any(run.suite == "attention" and run.dtype == FLOAT32 for run in results.runs):
        return [page]
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(chart.draw(results))
    return [page, picture]


def replaced(text: str, name: str, content: str) -> str:
    """The text with what stands between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->` replaced."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"the page must have {begin} and {end} once")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def sections_of(results: Results) -> dict[str, str]:
    """What goes between the markers of each name; nothing for suites that were not measured."""
    sections: dict[str, str] = {}
    full = [run for run in results.runs_of("attention") if run.dtype == FLOAT32]
    if full:
        sections |= _float32(full, results)
    half = [run for run in results.runs_of("attention") if run.dtype != FLOAT32 and run.threads == 1]
    if half:
        sections["half"] = _with_machine(results, *_sixteen_bits(half, results.machine["target"]))
    if ragged := results.runs_of("ragged"):
        sections["ragged"] = _with_machine(results, _times(ragged))
    if decode := results.runs_of("decode"):
        appending = table.append_tables(results)
        sections["decode"] = _with_machine(results, _times(decode), *map(table.markdown, appending))
    if rope := results.runs_of("rope"):
        sections["rope"] = _with_machine(results, _times(rope))
    if results.generate:
        sections["generate"] = _with_machine(results, *map(table.markdown, table.generate_tables(results)))
    return sections


def _with_machine(results: Results, *parts: str) -> str:
    """Suites may be measured on different days, so each says where."""
    return "\n\n".join(["\n".join(f"- {line}" for line in table.machine_lines(results.machine)), *parts])


def _sixteen_bits(runs: list[Run], own_target: str) -> list[str]:
    """A table for each dtype, and one for each other instruction set."""
    parts = []
    for target, dtype in dict.fromkeys((run.target, run.dtype) for run in runs):
        if target != own_target:
            parts.append(f"With `QKV_TARGET={target}`:")
        parts.append(_times([run for run in runs if (run.target, run.dtype) == (target, dtype)], everyone=True))
    return parts


def _float32(runs: list[Run], results: Results) -> dict[str, str]:
    here = [run for run in runs if run.target == results.machine["target"]]
    others = [run for run in runs if run.target != results.machine["target"]]
    extras = "\n\n".join(table.markdown(rows) for rows in table.extra_tables(results))
    return {
        "machine": "\n".join(f"- {line}" for line in table.machine_lines(results.machine)),
        "one": _times([run for run in here if run.threads == 1]),
        "more": _times([run for run in here if run.threads > 1]),
        "targets": "\n\n".join(
            f"With `QKV_TARGET={target}`, beside the peak of its vectors:\n\n"
            + _times([run for run in others if run.target == target])
            for target in dict.fromkeys(run.target for run in others)
        )
        or "No other instruction set was measured.",
        "extras": extras or "Not measured.",
    }


def _times(runs: list[Run], everyone: bool = False) -> str:
    """The table, and why peers of its columns lack a row; with `everyone`, those without a column too."""
    if not runs:
        return "Not measured."
    names = list(dict.fromkeys(peer for run in runs for peer in run.left_out)) if everyone else table.peers_of(runs)
    return "\n\n".join([table.markdown(table.rows_of(runs)), *table.left_out_lines(runs, names)])
