"""The rule for optional peers: skipped and counted, or failed where QKV_REQUIRE asks for them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

TESTS = """
import pytest

def test_plain():
    pass

@pytest.mark.needs("no_such_module")
def test_peer():
    raise AssertionError("must not run")

@pytest.mark.needs("numpy", "0.0.1")
def test_version():
    raise AssertionError("must not run")
"""


def run(folder: pathlib.Path, required: str) -> tuple[int, str]:
    shutil.copy(pathlib.Path(__file__).parent / "conftest.py", folder)
    (folder / "test_peers.py").write_text(TESTS)
    (folder / "test_file.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "--continue-on-collection-errors", "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "QKV_REQUIRE": required}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return finished.returncode, finished.stdout


def test_skips_are_counted(tmp_path: pathlib.Path) -> None:
    code, text = run(tmp_path, "torch")
    assert code == 0
    assert "1 passed, 3 skipped" in text
    assert "optional peers: 1 tests skipped: needs no_such_module" in text
    assert "optional peers: 1 tests skipped: needs numpy 0.0.1 (found " in text
    assert "optional peers: 1 files skipped: could not import 'no_such_module'" in text


def test_required_peers_fail(tmp_path: pathlib.Path) -> None:
    code, text = run(tmp_path, "no_such_module, numpy")
    assert code != 0
    assert "1 passed, 1 skipped, 2 errors" in text
    assert "needs no_such_module, and QKV_REQUIRE asks for it" in text
    assert "could not import 'no_such_module'" in text


def test_required_version_fails(tmp_path: pathlib.Path) -> None:
    code, text = run(tmp_path, "numpy==0.0.1")
    assert code != 0
    assert "1 passed, 2 skipped, 1 error" in text
    assert "needs numpy 0.0.1" in text
