"""The chart of the documentation: shares of the peak as bars, in SVG without any library."""

from __future__ import annotations

from html import escape

from qkv_bench.results import Results, Run

SHAPES = ("1x8x512x64", "1x8x2048x64", "1x8x4096x64", "1x8x2048x128", "8x12x128x64", "32x8x128x32", "64x12x50x64")
COLOURS = {"qkv": "#d1495b", "torch": "#30638e", "onnxruntime": "#3a9188", "openvino": "#edae49"}
OTHER_COLOUR = "#8d8d8d"
WIDTH, PANEL, TOP, LEFT = 960, 230, 44, 56
BARS = 160  # height of 100 %


def draw(results: Results) -> str:
    """One thread, full above causal, a group of bars for each shape, a bar for each library."""
    runs = {kind: _runs_of(results, kind) for kind in ("full", "causal")}
    names = list(dict.fromkeys(name for group in runs.values() for run in group for name in run.samples))
    parts = [_legend(names)]
    for row, (kind, group) in enumerate(runs.items()):
        parts.append(_panel(kind, group, names, TOP + row * PANEL))
    height = TOP + 2 * PANEL
    title = f"Share of the peak of one thread, {results.machine['cpu']}, target {results.machine['target']}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="12" fill="#777">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _runs_of(results: Results, kind: str) -> list[Run]:
    found = (results.find(f"{shape}-{kind}") for shape in SHAPES)
    return [run for run in found if run is not None]


def _legend(names: list[str]) -> str:
    parts = [_text(LEFT, 18, "Share of the peak of one thread, on visible work", weight="bold")]
    for i, name in enumerate(names):
        x = WIDTH - 120 * (len(names) - i)
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{COLOURS.get(name, OTHER_COLOUR)}"/>')
        parts.append(_text(x + 17, 18, name))
    return "\n".join(parts)


def _panel(kind: str, runs: list[Run], names: list[str], top: int) -> str:
    bottom = top + 20 + BARS
    parts = [_text(LEFT, top + 8, kind)]
    for percent in (0, 25, 50, 75, 100):
        y = bottom - BARS * percent / 100
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:g}" y2="{y:g}" stroke="#8885" stroke-width="1"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{percent} %", anchor="end"))
    step = (WIDTH - LEFT) / max(1, len(runs))
    width = min(24.0, 0.8 * step / max(1, len(names)))
    for i, run in enumerate(runs):
        middle = LEFT + step * (i + 0.5)
        parts.append(_text(middle, bottom + 18, run.case.rsplit("-", 1)[0].replace("x", ","), anchor="middle"))
        parts += _group(run, names, middle - width * len(names) / 2, width, bottom)
    return "\n".join(parts)


def _group(run: Run, names: list[str], left: float, width: float, bottom: float) -> list[str]:
    parts = []
    for i, name in enumerate(names):
        if name not in run.samples:
            continue
        share = run.share(name)
        height = BARS * min(share, 1.0)
        x = left + i * width
        parts.append(
            f'<rect x="{x:.1f}" y="{bottom - height:.1f}" width="{width - 2:.1f}" height="{height:.1f}" '
            f'fill="{COLOURS.get(name, OTHER_COLOUR)}"><title>{escape(name)}: {100 * share:.0f} %</title></rect>'
        )
        if name == "qkv":
            parts.append(_text(x + width / 2 - 1, bottom - height - 4, f"{100 * share:.0f}", anchor="middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
