"""Writes results into docs/performance.md, between its markers, and draws the chart beside it."""

from __future__ import annotations

import re
from pathlib import Path

from qkv_bench import chart, table
from qkv_bench.native import ROOT
from qkv_bench.results import Results, Run

PAGE = ROOT / "docs" / "performance.md"
CHART = ROOT / "docs" / "img" / "attention.svg"


def write(results: Results, page: Path = PAGE, picture: Path = CHART) -> list[Path]:
    """Replaces what stands between the markers and the chart; returns what was written.

    Raises ValueError where the page lacks a marker, before anything is written.
    """
    text = page.read_text()
    for name, content in sections_of(results).items():
        text = replaced(text, name, content)
    picture.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
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
    """What goes between the markers of each name."""
    here = [run for run in results.runs if run.target == results.machine["target"]]
    others = [run for run in results.runs if run.target != results.machine["target"]]
    machine = "\n".join(f"- {line}" for line in table.machine_lines(results.machine))
    extras = "\n\n".join(table.markdown(rows) for rows in table.extra_tables(results))
    return {
        "machine": machine,
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


def _times(runs: list[Run]) -> str:
    if not runs:
        return "Not measured."
    peers = table.peers_of(runs)
    rows = table.markdown([table.header_of(peers), *(table.cells_of(run, peers) for run in runs)])
    return "\n\n".join([rows, *_left_out(runs, peers)])


def _left_out(runs: list[Run], peers: list[str]) -> list[str]:
    """Why a cell is "-", once for each reason."""
    reasons: dict[str, list[str]] = {}
    for run in runs:
        for peer, reason in run.left_out.items():
            if peer in peers:
                reasons.setdefault(f"{peer} {reason}", []).append(run.case)
    return [f"Left out: {reason} ({', '.join(f'`{case}`' for case in cases)})." for reason, cases in reasons.items()]
