#!/usr/bin/env python3
"""Warns at files over 500 lines, fails over 800; for public headers and bindings 300 and 400."""

from __future__ import annotations

import sys
from pathlib import Path

from files import ROOT, tree_files

SOURCES = (".h", ".cc", ".c", ".py", ".sh", ".cmake", ".toml", ".txt")
# Frozen: may shrink, never grow.
ALLOWED: frozenset[str] = frozenset()


def limits_of(path: Path) -> tuple[int, int]:
    """Lines that warn and lines that fail."""
    if path.parts[0] == "include" or path.parts[:2] == ("python", "bindings"):
        return 300, 400
    return 500, 800


def main() -> int:
    """Prints what is too long; 1 if a file is over its limit and not in the frozen list."""
    failed = False
    for path in tree_files(suffixes=SOURCES):
        lines = len((ROOT / path).read_bytes().splitlines())
        warns, fails = limits_of(path)
        if lines > fails and str(path) not in ALLOWED:
            print(f"{path}: {lines} lines, the limit is {fails}: split it by concept")
            failed = True
        elif lines > warns:
            print(f"warning: {path}: {lines} lines, think of splitting it at {warns}")
    if not failed:
        print("sizes: no file over its limit")
    return failed


if __name__ == "__main__":
    sys.exit(main())
