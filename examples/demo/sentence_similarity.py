#!/usr/bin/env python3
"""How similar are these sentences? A real transformer, MiniLM, answers with qkv's attention and with PyTorch's.

Prints the similarities as a table, the closest pairs, how far the two attentions differ and how long each takes.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys

import heat_table as text
from comparison import DemoError, compare
from show import show

PROGRAM = "sentence_similarity"
LARGEST_DIFFERENCE = 1e-4  # of a similarity; rounding is a thousand times smaller
MOST_SENTENCES = 2000

SENTENCES = [
    "The receiver locked onto the beacon within seconds.",
    "It took only a moment until we picked up the satellite's signal, clear and strong, just above the horizon.",
    "Strong interference from a nearby transmitter made the weak station impossible to hear.",
    "Knead the dough until it is smooth and let it rest for an hour.",
    "Good bread needs patience: work the flour and water together, then leave them alone until they have doubled.",
    "She added a pinch of salt to the soup and tasted it again.",
    "Heavy rain is expected along the coast tonight.",
    "The forecast for this evening warns sailors and holidaymakers by the sea of a great deal of rain.",
    "After a week of fog, the sun finally came out.",
    "The library closes at six on Saturdays.",
    "On weekends you can borrow books only until early evening.",
    "My grandmother kept every letter that my grandfather sent her during the years he worked abroad.",
]


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__.strip().splitlines()[0])
    parser.add_argument(
        "file", nargs="?", help="sentences, one a line, UTF-8; - is standard input; default: a dozen built in"
    )
    parser.add_argument("--top", type=int, default=4, metavar="N", help="closest pairs to show (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads for both; default: PyTorch's")
    parser.add_argument("--color", choices=["auto", "always", "never"], default="auto", help="default: auto")
    parser.add_argument("--plot", metavar="FILE", help="also draw the table into FILE (.png, .svg; needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    arguments = parser.parse_args(argv)
    if arguments.threads is not None and arguments.threads < 1:
        parser.error(f"--threads: {arguments.threads} is not a number of threads; expected 1 or more")
    if arguments.top < 0:
        parser.error(f"--top: {arguments.top} is not a number of pairs; expected 0 or more")
    return arguments


def read_sentences(source: str | None) -> list[str]:
    """The sentences of a file, of standard input ("-"), or the built-in ones; blank lines do not count."""
    if source is None:
        return SENTENCES
    name = "standard input" if source == "-" else source
    try:
        raw = sys.stdin.buffer.read() if source == "-" else pathlib.Path(source).read_bytes()
        lines = raw.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise DemoError(f"{name}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise DemoError(f"{name}: not UTF-8 text (byte {error.start})") from error
    sentences = [text.printable(line).strip() for line in lines]
    sentences = [sentence for sentence in sentences if sentence]
    if len(sentences) < 2:
        found = "1 sentence" if sentences else "no sentences"
        raise DemoError(f"{name}: found {found}; expected two or more, one a line")
    if len(sentences) > MOST_SENTENCES:
        raise DemoError(f"{name}: found {len(sentences)} sentences; expected at most {MOST_SENTENCES}")
    return sentences


def load_pyplot():
    """Matplotlib without a display, before anything slow is done."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise DemoError("--plot needs matplotlib: pip install matplotlib") from error
    return pyplot


def plot(pyplot, result: dict, path: str) -> None:
    """Draws the table into a file of the kind that its name says."""
    sentences = result["sentences"]
    labels = [f"{text.fit(sentence, 48)}  {i}" for i, sentence in enumerate(sentences, 1)]
    size = max(4.0, 0.38 * len(sentences))
    figure, axes = pyplot.subplots(figsize=(size + 4.5, size), layout="constrained")
    image = axes.imshow(result["similarities"], vmin=0, vmax=1, cmap="viridis")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xticks(range(len(labels)), range(1, len(labels) + 1))
    axes.set_title(f"Sentence similarity, {result['model']} with qkv {result['qkv']['version']}")
    figure.colorbar(image, label="cosine similarity")
    try:
        figure.savefig(path)
    except OSError as error:
        raise DemoError(f"--plot: {path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise DemoError(f"--plot: {' '.join(str(error).split())}") from error


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    try:
        sentences = read_sentences(arguments.file)
        pyplot = load_pyplot() if arguments.plot else None
        waiting = sys.stderr.isatty() and not arguments.json
        if waiting:
            print("loading the model ...", end="", file=sys.stderr, flush=True)
        try:
            result = compare(sentences, arguments.top, arguments.threads)
        finally:
            if waiting:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        if arguments.json:
            print(json.dumps(result, ensure_ascii=False, indent=1))
        else:
            show(result, text.Style.of(sys.stdout, arguments.color), text.terminal_columns())
        if arguments.plot:
            plot(pyplot, result, arguments.plot)
        if not result["largest_difference"]["similarities"] <= LARGEST_DIFFERENCE:
            print(f"{PROGRAM}: the two attentions do not agree", file=sys.stderr)
            return 1
    except DemoError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
