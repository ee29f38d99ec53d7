"""The files of the tree that a check should read: what git tracks or would track, or all where there is no git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED_FOLDERS = {"build", "dist", ".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def tree_files(root: Path = ROOT, suffixes: tuple[str, ...] = ()) -> list[Path]:
    """Paths relative to root, sorted; those with one of the suffixes, or all."""
    names = _from_git(root) if (root / ".git").exists() and shutil.which("git") else None
    if names is None:
        names = _walk(root)
    files = {name for name in names if (root / name).is_file()}
    return sorted(name for name in files if not suffixes or name.suffix in suffixes)


def _from_git(root: Path) -> list[Path] | None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listing.returncode:
        return None
    return [Path(name) for name in listing.stdout.decode().split("\0") if name]


def _walk(root: Path) -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS]
        found += [Path(folder, name).relative_to(root) for name in names]
    return found
