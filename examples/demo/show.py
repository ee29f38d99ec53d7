"""The result of the demo as text."""

from __future__ import annotations

from comparison import MOST_TOKENS
from heat_table import Style, fit, heat_table, legend, wrap


def show(result: dict, style: Style, columns: int) -> None:
    """Prints the table, the closest pairs and the comparison, in at most ``columns`` (or 40)."""
    for part in (_head, _table, _pairs, _comparison, _facts):
        print("\n".join(part(result, style, columns)))


def _head(result: dict, style: Style, columns: int) -> list[str]:
    lengths = result["tokens"]
    dot = " · " if style.unicode else ", "
    title, subtitle = "Sentence similarity", f"{dot}{result['model']} with qkv attention"
    if len(title + subtitle) > columns:
        subtitle = ""
    lines = [
        style.bold(title) + style.dim(subtitle),
        style.dim(f"{len(lengths)} sentences of {min(lengths)} to {max(lengths)} tokens"),
    ]
    if result["cut"]:
        lines.append(style.dim(f"{result['cut']} of them cut to {MOST_TOKENS} tokens"))
    return [*lines, ""]


def _table(result: dict, style: Style, columns: int) -> list[str]:
    sentences = result["sentences"]
    table = heat_table(result["similarities"], sentences, columns, style)
    if not table:
        return [style.dim(fit(f"(too narrow for a table of {len(sentences)})", columns, style.unicode)), ""]
    if style.depth and columns >= 52:
        table += ["", " " * (len(str(len(sentences))) + 1) + legend(style)]
    return [*table, ""]


def _pairs(result: dict, style: Style, columns: int) -> list[str]:
    if not result["closest"]:
        return []
    number = len(str(len(result["sentences"])))
    indent = 10 + number
    lines = [style.bold("Closest pairs")]
    for pair in result["closest"]:
        margin = style.heat(pair["similarity"], f" {pair['similarity']:.2f} ".rjust(6)) + "  "
        for index in (pair["first"], pair["second"]):
            first, *rest = wrap(result["sentences"][index - 1], max(columns - indent, 8))
            lines.append(f"{margin}{style.dim(f'{index:>{number}}')}  {first}")
            lines += [" " * indent + more for more in rest]
            margin = " " * 8
    return [*lines, ""]


def _comparison(result: dict, style: Style, columns: int) -> list[str]:
    ours, theirs = result["times"]["qkv"], result["times"]["sdpa"]
    rows = [
        ("attention layers", f"{ours['attention_ms']:.1f} ms", f"{theirs['attention_ms']:.1f} ms"),
        ("whole model", f"{ours['model_ms']:.1f} ms", f"{theirs['model_ms']:.1f} ms"),
        ("attention's share", f"{ours['attention_share']:.0%}", f"{theirs['attention_share']:.0%}"),
    ]
    difference = result["largest_difference"]
    similarity = f"of a similarity {difference['similarities']:.1e}"
    embedding = f"of an embedding {difference['embeddings']:.1e}"
    narrow = ["  largest difference", f"    {similarity}", f"    {embedding}"]
    return [
        style.bold("qkv and PyTorch's own attention"),
        style.dim(f"{'':19}{'qkv':>10}{'PyTorch':>11}"),
        *(f"  {label:<17}{a:>10}{b:>11}" for label, a, b in rows),
        *([f"  largest difference {similarity}, {embedding}"] if columns >= 80 else narrow),
        "",
    ]


def _facts(result: dict, style: Style, columns: int) -> list[str]:
    threads = f"{result['threads']} thread{'s' * (result['threads'] != 1)}"
    runs = f"{result['times']['runs']} run{'s' * (result['times']['runs'] != 1)}"
    facts = (
        f"median of {runs} in turn, {threads}; qkv {result['qkv']['version']} "
        f"({result['qkv']['target']}), torch {result['torch']}, transformers {result['transformers']}, "
        f"Python {result['python']}, {result['qkv']['cpu']}"
    )
    return [style.dim(line) for line in wrap(facts, columns)]
