"""tools/dev/setup.sh: what is installed once, and what is tried again."""

from __future__ import annotations

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

SCRIPT = """
set -euo pipefail
ROOT={folder}
source tools/dev/common.sh
source tools/dev/setup.sh
pip_install() {{ echo "pip $1"; [[ "$1" == onnx==* ]]; }}  # has no wheel of anything else
setup_onnx
echo again
setup_onnx
has_onnx && ! has_onnxruntime && echo "onnx alone"
"""


def test_a_missing_wheel_does_not_repeat_the_others(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".venv").mkdir()
    script = SCRIPT.format(folder=tmp_path)
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [line.split("==")[0] for line in done.stdout.splitlines() if line and not line.startswith("== ")]
    assert lines == ["pip onnx", "pip onnxruntime", "again", "pip onnxruntime", "onnx alone"]
