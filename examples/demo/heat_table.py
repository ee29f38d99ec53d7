"""Text for terminals: a coloured similarity table and columns that fit."""

from __future__ import annotations

import itertools
import os
import sys
import unicodedata
from collections.abc import Sequence

# From "unrelated" to "the same": points on a ramp of dark blue, teal, green, yellow.
_RAMP = [
    (0.0, (28, 36, 76)),
    (0.3, (36, 88, 124)),
    (0.55, (38, 140, 120)),
    (0.75, (122, 186, 82)),
    (1.0, (250, 222, 60)),
]
_PALETTE = (17, 18, 24, 30, 36, 72, 71, 113, 149, 220)  # the same in terminals of 256 colours, by tenths
_CELLS = (5, 4)  # columns of a number such as " .71 " or "-.03", where there is room
_BARE = 2  # columns of a cell without its number
_LABEL = 16  # columns that a label should keep


class Style:
    """How much a stream can show: none (a file, a pipe), 256 colours or all of them."""

    def __init__(self, depth: int, unicode: bool) -> None:
        self.depth = depth
        self.unicode = unicode

    @staticmethod
    def of(stream, when: str = "auto") -> Style:
        """``when``: auto (colours in a terminal, unless NO_COLOR is set), always or never."""
        plain = not stream.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
        depth = 0 if when == "never" or (when == "auto" and plain) else 8
        if depth and os.environ.get("COLORTERM") in ("truecolor", "24bit"):
            depth = 24
        return Style(depth, (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8")

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.depth else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.depth else text

    def heat(self, value: float, text: str) -> str:
        """``text`` on the colour of ``value``; without colours the text alone."""
        if not self.depth:
            return text
        red, green, blue = colour(value)
        dark = 0.299 * red + 0.587 * green + 0.114 * blue < 120
        ink = 231 if dark else 16
        if self.depth == 24:
            return f"\x1b[48;2;{red};{green};{blue}m\x1b[38;5;{ink}m{text}\x1b[0m"
        step = min(int(max(value, 0.0) * len(_PALETTE)), len(_PALETTE) - 1)
        return f"\x1b[48;5;{_PALETTE[step]}m\x1b[38;5;{ink}m{text}\x1b[0m"


def colour(value: float) -> tuple[int, int, int]:
    """The ramp at ``value``, cut to 0..1."""
    value = min(max(value, 0.0), 1.0)
    for (low, a), (high, b) in itertools.pairwise(_RAMP):
        if value <= high:
            t = (value - low) / (high - low)
            red, green, blue = (round(x + t * (y - x)) for x, y in zip(a, b, strict=True))
            return red, green, blue
    return _RAMP[-1][1]


def width_of(text: str) -> int:
    """Terminal columns of ``text``: East Asian characters take two, combining marks none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def printable(text: str) -> str:
    """The text without anything that could move a cursor or start an escape sequence."""
    return "".join(c if c.isprintable() else " " for c in text)


def fit(text: str, columns: int, unicode: bool = True) -> str:
    """The text, cut to ``columns`` with an ellipsis where it is longer."""
    if width_of(text) <= columns:
        return text
    mark = "…" if unicode else "..."
    room = columns - len(mark)
    if room <= 0:
        return mark[: max(columns, 0)]
    kept = ""
    for c in text:
        if width_of(kept + c) > room:
            break
        kept += c
    return kept.rstrip() + mark


def wrap(text: str, columns: int) -> list[str]:
    """Lines of at most ``columns``, broken at spaces; a longer word is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        while width_of(word) > columns:
            head = fit(word, columns, unicode=True)
            lines += [line, head] if line else [head]
            line, word = "", word[len(head) - 1 :]
        if line and width_of(line) + 1 + width_of(word) > columns:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line or not lines else lines


def cell_text(value: float, columns: int) -> str:
    """Two decimals: " .71", "-.03", " 1.0"."""
    short = f"{value:+.1f}"[1:] if abs(value) >= 0.995 else f"{abs(value):.2f}"[1:]
    sign = "-" if value <= -0.005 else " "
    return f"{sign}{short}".ljust(columns)


def heat_table(similarities: Sequence[Sequence[float]], labels: Sequence[str], columns: int, style: Style) -> list[str]:
    """One line a row: its number, its cells, its label. An empty list where not even bare cells fit.

    Without room for the numbers the cells are bare colours (in a terminal with colours).
    """
    count = len(labels)
    number = len(str(count))
    cell = _cell_columns(count, columns - number - 1, style)
    if not cell:
        return []
    bare = cell == _BARE
    room = columns - (number + 1 + count * cell + 2)
    dot = "·" if style.unicode else "."

    def show(row: int, column: int, value: float) -> str:
        if row == column:
            return style.dim(dot.center(cell))
        return style.heat(value, " " * cell if bare else cell_text(value, cell))

    lines = []
    if not bare:
        numbers = "".join(str(j).rjust(3).ljust(cell) for j in range(1, count + 1))
        lines.append(style.dim(" " * (number + 1) + numbers.rstrip()))
    for i, row in enumerate(similarities):
        cells = "".join(show(i, j, value) for j, value in enumerate(row))
        label = "  " + fit(labels[i], room, style.unicode) if room >= 8 else ""
        lines.append(f"{style.dim(f'{i + 1:>{number}}')} {cells}{label}")
    return lines


def _cell_columns(count: int, room: int, style: Style) -> int:
    """The widest cell that leaves room for labels, else the widest that fits at all, else 0."""
    for cell in _CELLS:
        if count * cell + _LABEL <= room:
            return cell
    for cell in (_CELLS[-1], _BARE) if style.depth else _CELLS[-1:]:
        if count * cell <= room:
            return cell
    return 0


def legend(style: Style) -> str:
    """What the colours mean."""
    cells = "".join(style.heat(step / 10, f"{step / 10:^5.1f}") for step in range(0, 11, 2))
    return f"{style.dim('unrelated')} {cells} {style.dim('the same')}" if style.depth else ""


def terminal_columns(stream=sys.stdout) -> int:
    """COLUMNS, or the width of the terminal that ``stream`` is, or 100."""
    try:
        given = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        given = 0
    if given > 0:
        return max(given, 20)
    try:
        return max(os.get_terminal_size(stream.fileno()).columns, 20)
    except (OSError, ValueError):
        return 100
