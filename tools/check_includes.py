#!/usr/bin/env python3
"""Checks that no #include points up the layers, and that every quoted #include names a file.

The order is that of ARCHITECTURE.md: a folder may include itself, the public headers, and folders of a lower rank.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from files import ROOT, tree_files

RANKS = {
    "base": 0,
    "reference": 1,
    "kernels": 1,
    "attention": 2,
    "c_api": 3,
    "python": 3,
    "cli": 3,
}
# Which layers may see a library from outside; others are free.
OUTSIDE = {"hwy/": {"base", "kernels"}, "nanobind/": {"python"}, "CLI/": {"cli"}, "nlohmann/": {"base", "cli"}}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def layer_of(path: Path) -> str | None:
    """The layer of a file: "public" for include/qkv, None for tests and the like, which may see all."""
    parts = path.parts
    if parts[0] == "include":
        return "public"
    if parts[0] == "src":
        return parts[1]
    return {"apps": "cli", "python": "python"}.get(parts[0])


def problems_of(path: Path, text: str, root: Path = ROOT) -> list[str]:
    """What is wrong with the includes of one file."""
    layer = layer_of(path)
    if layer is None:
        return []
    if layer != "public" and layer not in RANKS:
        return [f"{path}: src/{layer} is no known layer; tools/check_includes.py lists them"]
    problems = []
    for match in INCLUDE.finditer(text):
        quoted, angled = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        problem = _quoted_problem(path, layer, quoted, root) if quoted else _angled_problem(layer, angled)
        if problem:
            problems.append(f"{path}:{line}: {problem}")
    return problems


def _quoted_problem(path: Path, layer: str, name: str, root: Path) -> str | None:
    folder = name.split("/")[0]
    if folder == "qkv":
        return None if (root / "include" / name).is_file() else f'"{name}" is no public header'
    if layer == "public":
        return f'"{name}": public headers include public headers only'
    if (root / path.parent / name).is_file() and "/" not in name:
        return None
    if layer in ("python", "cli") and any((root / base / name).is_file() for base in ("python", "apps")):
        return None
    if folder not in RANKS:
        return _angled_problem(layer, name)
    if not (root / "src" / name).is_file() and not (root / "src" / f"{name}.in").is_file():
        return f'"{name}": no such file under src/'
    if folder != layer and RANKS[folder] >= RANKS[layer]:
        return f'"{name}" points up: {layer} may not see {folder}'
    return None


def _angled_problem(layer: str, name: str) -> str | None:
    for prefix, allowed in OUTSIDE.items():
        if name.startswith(prefix):
            return None if layer in allowed else f"<{name}>: only {', '.join(sorted(allowed))} may see {prefix}"
    return None if "." not in name or not name.startswith("src/") else f"<{name}>: written from the wrong root"


def main() -> int:
    """Prints every problem; 1 if there is one."""
    problems = []
    for path in tree_files(suffixes=(".h", ".cc", ".c")):
        problems += problems_of(path, (ROOT / path).read_text())
    print("\n".join(problems) if problems else "includes: no layer points up")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
