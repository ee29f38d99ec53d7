"""One line on the terminal that says what is being measured; nothing where no person is looking."""

from __future__ import annotations

import sys
import time


class Progress:
    """Rewrites a line of stderr, if that is a terminal."""

    def __init__(self, total: int) -> None:
        """Total is the number of steps."""
        self._shown = sys.stderr.isatty()
        self._total = total
        self._done = 0
        self._start = time.monotonic()

    def step(self, text: str) -> None:
        """Begins the next step."""
        self._done += 1
        elapsed = time.monotonic() - self._start
        self._write(f"[{self._done}/{self._total}, {elapsed:.0f} s] {text}")

    def clear(self) -> None:
        """Makes room for other output."""
        self._write("")

    def _write(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\033[K{text[:100]}")
            sys.stderr.flush()
