"""Results in files, tables and the chart."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from qkv_bench import report, table
from qkv_bench.clock import Samples
from qkv_bench.results import Results, Run

MACHINE = {
    "cpu": "Some <CPU>", "cpus": 2, "system": "Linux 6", "python": "3.11", "numpy": "2", "compiler": "GNU 12",
    "build_type": "Release", "target": "avx2", "targets": ["avx2"], "peak": 9e10, "date": "2026-01-01",
    "busy_cpus": 0.0, "versions": {"qkv": "0.1.0", "torch": "2.13.0"},
}  # fmt: skip
NAMES = ("half", "ragged", "decode", "generate", "machine", "one", "more", "targets", "extras")


def some_results() -> Results:
    samples = {"qkv": Samples([0.01] * 3, [0.02] * 3), "torch": Samples([0.015] * 3, [0.02] * 3)}
    runs = [
        Run("1x8x512x64-full", 1, "avx2", 600_000_000, [1e11] * 3, samples, left_out={"openvino": "not installed"}),
        Run("1x8x512x64-full", 2, "avx2", 600_000_000, [1e11] * 3, samples),
        Run("1x8x512x64-causal", 1, "avx2", 300_000_000, [1e11] * 3, {"qkv": samples["qkv"]}, {}, {"torch": "fails"}),
        Run("1x8x512x64-full", 1, "sse4", 600_000_000, [1e11] * 3, samples),
    ]
    half = {"qkv": samples["qkv"], "qkv float32": samples["torch"]}
    runs += [
        Run(
            "1x8x512x64-full-bfloat16",
            1,
            "avx2",
            600_000_000,
            [1e11] * 3,
            half,
            {},
            {"openvino": "has none"},
            "bfloat16",
        ),
        Run("1x8x512x64-full-float16", 1, "avx2", 600_000_000, [1e11] * 3, half, dtype="float16"),
        Run("ragged-a", 1, "avx2", 600_000_000, [1e11] * 3, half, suite="ragged"),
        Run("decode-a", 2, "avx2", 80_000_000, [4e9] * 3, samples, dtype="bfloat16", suite="decode"),
    ]
    model = [{"batch": 1, "tokens": 16, "qkv": [0.1], "sdpa": [0.2]}]
    generated = [{"length": 128, "cached": [1e-3], "recomputed": [4e-2]}]
    tiny, append = {"numpy": [2e-6]}, {"numpy": [1.5e-6]}
    return Results(MACHINE, runs, {"qkv": {"c": 2**20}}, tiny, {"c": 3e-7}, model, append, generated)


def page_of(path: Path, names: tuple[str, ...] = NAMES) -> Path:
    sections = "".join(
        f"Before {name}.\n\n<!-- bench:{name} -->\nold {name}\n<!-- /bench:{name} -->\n" for name in names
    )
    path.write_text(f"# Title\n\n{sections}\nThe end, \\1.\n")
    return path


def outside(text: str) -> list[str]:
    kept, inside = [], False
    for line in text.splitlines():
        inside = inside and not line.startswith("<!-- /bench:")
        if not inside:
            kept.append(line)
        inside = inside or line.startswith("<!-- bench:")
    return kept


def test_only_what_stands_between_the_markers_changes(tmp_path: Path) -> None:
    page, picture = page_of(tmp_path / "page.md"), tmp_path / "img" / "chart.svg"
    before = page.read_text()
    assert report.write(some_results(), page, picture) == [page, picture]
    after = page.read_text()
    assert outside(after) == outside(before)
    assert "old" not in after
    assert "| 1x8x512x64-full | 1 | 60.0 | 60 % | 1.50 | 10.0 | 20.0 |" in after
    assert "| 1x8x512x64-full | 2 | 30.0 | 15 % | 1.00 | 10.0 | 20.0 |" in after
    assert "| 1x8x512x64-causal | 1 | 30.0 | 30 % | - | 10.0 | 20.0 |" in after
    assert "Left out: torch fails (`1x8x512x64-causal`)." in after
    assert "openvino not installed" not in after
    assert "QKV_TARGET=sse4" in after
    assert "| batch 1, 16 tokens | 100.0 | 200.0 | 2.00 |" in after
    assert "| 1x8x512x64-full-bfloat16 | 1 | 60.0 | 60 % | - | 1.50 | 10.0 | 20.0 |" in after
    assert "Left out: openvino has none (`1x8x512x64-full-bfloat16`)." in after
    assert "| 1x8x512x64-full-float16 | 1 | 60.0 | 60 % | 1.50 | 10.0 | 20.0 |" in after
    assert "| ragged-a | 1 | 60.0 | 60 % |" in after
    assert "| decode-a | 2 | 4.0 | 50 % | 1.00 | 10.0 | 20.0 |" in after
    assert "| numpy | 1.50 |" in after
    assert "| 128 | 1.00 | 40.0 | 40 |" in after
    assert "| MQA, kv heads: 1 | 8.0 | 4.0 | 2.1 |" in after
    report.write(some_results(), page, picture)
    assert page.read_text() == after


def test_what_was_not_measured_stays(tmp_path: Path) -> None:
    page, picture = page_of(tmp_path / "page.md"), tmp_path / "chart.svg"
    results = some_results()
    results.runs, results.generate = results.runs_of("decode"), []
    assert report.write(results, page, picture) == [page]
    after = page.read_text()
    assert "old decode" not in after
    assert all(f"old {name}\n" in after for name in NAMES if name != "decode")


def test_files_are_read_together() -> None:
    one, two = some_results(), some_results()
    one.runs, two.runs, one.append, two.model = one.runs[:2], two.runs[1:], {}, []
    two.runs[0].operations = 7
    two.machine = {**MACHINE, "busy_cpus": 0.5, "versions": {"qkv": "0.1.0", "openvino": "1"}}
    whole = Results.merged([one, two])
    assert [run.case for run in whole.runs] == [run.case for run in some_results().runs]
    assert whole.runs[1].operations == 7
    assert (whole.append, whole.model) == (two.append, one.model)
    assert whole.machine["busy_cpus"] == 0.5
    assert set(whole.machine["versions"]) == {"qkv", "torch", "openvino"}
    two.machine = {**MACHINE, "cpu": "another"}
    with pytest.raises(ValueError, match="two machines: Some <CPU>, another"):
        Results.merged([one, two])


def test_a_page_without_a_marker_is_left_alone(tmp_path: Path) -> None:
    page, picture = page_of(tmp_path / "page.md", NAMES[:-1]), tmp_path / "chart.svg"
    before = page.read_text()
    with pytest.raises(ValueError, match="bench:extras"):
        report.write(some_results(), page, picture)
    assert page.read_text() == before
    assert not picture.exists()


def test_the_page_of_the_tree_has_the_markers() -> None:
    text = report.PAGE.read_text()
    for name in NAMES:
        assert "written" in report.replaced(text, name, "written")


def test_the_chart_is_xml_with_a_bar_for_each_runner(tmp_path: Path) -> None:
    page, picture = page_of(tmp_path / "page.md"), tmp_path / "chart.svg"
    report.write(some_results(), page, picture)
    root = ET.fromstring(picture.read_text())
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = [title.text for title in root.findall("s:rect/s:title", space)]
    assert titles == ["qkv: 60 %", "torch: 40 %", "qkv: 30 %"]
    assert "Some <CPU>" in (root.findtext("s:title", namespaces=space) or "")


def test_files_hold_all_of_it(tmp_path: Path) -> None:
    results = some_results()
    results.save(tmp_path / "deep" / "r.json")
    assert Results.load(tmp_path / "deep" / "r.json") == results
    (tmp_path / "other.json").write_text('{"name": 1}')
    with pytest.raises(ValueError, match="no result of"):
        Results.load(tmp_path / "other.json")


def test_the_terminal_shows_the_same() -> None:
    text = table.terminal(some_results())
    assert "of dot peak" in text
    assert "GB/s" in text
    assert "Left out: openvino has none (`1x8x512x64-full-bfloat16`)." in text
    row = next(line for line in text.splitlines() if line.startswith("1x8x512x64-full"))
    assert row.split() == ["1x8x512x64-full", "1", "60.0", "60", "%", "1.50", "10.0", "20.0"]
    busy = some_results()
    busy.machine = {**busy.machine, "busy_cpus": 1.5}
    assert "Other programs used 1.5 CPUs" in table.terminal(busy)
    assert "Other programs" not in text


def test_columns_are_aligned() -> None:
    assert table.aligned([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"
