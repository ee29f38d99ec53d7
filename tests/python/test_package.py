"""The package: what importing it costs, its names, documentation, types and configuration."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

import qkv

FOLDER = pathlib.Path(qkv.__file__).parent
MODULES = [
    "qkv",
    "qkv._attention",
    "qkv._config",
    "qkv._dtypes",
    "qkv._errors",
    "qkv._merge",
    "qkv._rope",
    "qkv._types",
    "qkv.masks",
    "qkv.position",
    "qkv.reference",
    pytest.param("qkv.onnx", marks=pytest.mark.needs("onnx")),
    pytest.param("qkv.torch", marks=pytest.mark.needs("torch")),
    pytest.param("qkv.torch._attention", marks=pytest.mark.needs("torch")),
    pytest.param("qkv.torch._modules", marks=pytest.mark.needs("torch")),
    pytest.param("qkv.torch._patch", marks=pytest.mark.needs("torch")),
    pytest.param("qkv.torch._sdpa", marks=pytest.mark.needs("torch")),
]


def run(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert not check or finished.returncode == 0, finished.stdout + finished.stderr
    return finished


def test_import_needs_numpy_alone() -> None:
    code = (
        "import sys, numpy; before = set(sys.modules); import qkv; a = numpy.ones((2, 3)); qkv.attention(a, a, a); "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'numpy'}))"
    )
    assert run("-c", code).stdout.strip() == "['qkv']"


@pytest.mark.parametrize(("name", "peer"), [("hf", "torch"), ("onnx", "onnx"), ("torch", "torch")])
def test_adapters_are_lazy(name: str, peer: str) -> None:
    assert name in dir(qkv)
    code = f"import sys, qkv; assert 'qkv.{name}' not in sys.modules; sys.modules['{peer}'] = None; qkv.{name}"
    failed = run("-c", code, check=False)
    assert failed.returncode == 1
    assert f"ImportError: qkv.{name} needs" in failed.stderr
    with pytest.raises(AttributeError, match="module 'qkv' has no attribute 'nothing'"):
        qkv.nothing  # noqa: B018


@pytest.mark.needs("onnx")
def test_onnx_of_an_older_release() -> None:
    code = "import onnx; onnx.__version__ = '1.22.1rc2'; import qkv.onnx"
    failed = run("-c", code, check=False)
    assert failed.returncode == 1
    assert "ImportError: qkv.onnx needs onnx 1.23 or newer (found onnx 1.22.1rc2)" in failed.stderr
    code = "import sys; sys.modules['ml_dtypes'] = None; import qkv.onnx"
    assert "ImportError: qkv.onnx needs onnx 1.23 or newer (" in run("-c", code, check=False).stderr


@pytest.mark.slow
@pytest.mark.needs("transformers")
def test_hf_is_found() -> None:
    assert run("-c", "import qkv; print(qkv.hf.__name__)").stdout.strip() == "qkv.hf"


@pytest.mark.needs("onnx")
def test_onnx_is_found() -> None:
    assert run("-c", "import qkv; print(qkv.onnx.run.__module__)").stdout.startswith("qkv.onnx")


@pytest.mark.parametrize("name", MODULES)
def test_names_exist_and_are_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public in module.__all__:
        assert hasattr(module, public)
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, public


def test_star_import_keeps_built_in_names() -> None:
    import builtins

    assert not set(qkv.__all__) & set(dir(builtins))


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_documentation(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_version_and_config(capsys: Any) -> None:
    config = qkv.config()
    assert config["version"] == qkv.__version__
    assert config["target"] == qkv.target()
    assert config["targets"] == qkv.available_targets()
    assert config["threads"] == qkv.num_threads()
    assert set(config) == {
        "version",
        "target",
        "targets",
        "threads",
        "compiler",
        "build_type",
        "cpu",
        "highway",
        "numpy",
    }
    assert all(config.values())
    qkv.show_config()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(config)
    assert lines[0].split()[1] == qkv.__version__


def test_stub_has_the_names_of_the_extension() -> None:
    stub = ast.parse((FOLDER / "_core.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    from qkv import _core

    assert declared == {name for name in dir(_core) if not name.startswith("_")}
    assert (FOLDER / "py.typed").exists()


TYPED = """
from typing import Any, assert_type
import numpy as np
import numpy.typing as npt
import qkv

f32 = np.ones((1, 2, 3, 4), np.float32)
f64 = f32.astype(np.float64)
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
assert_type(qkv.attention(f32, f32, f32), F32)
assert_type(qkv.attention(f64, f64, f64, causal=True, mask=qkv.masks.causal(3, 3), window=(2, None)), F64)
assert_type(qkv.attention(f32, f32, f32, return_lse=True), tuple[F32, F32])
assert_type(qkv.attention(f32, f32, f32, return_weights=qkv.Select(heads=[0])), tuple[F32, F32])
assert_type(qkv.attention(f64, f64, f64, return_lse=True, return_stats=True), tuple[F64, F64, qkv.Stats[F64]])
assert_type(
    qkv.attention(f32, f32, f32, return_lse=True, return_logits="masked", return_weights=True, return_stats=True),
    tuple[F32, F32, F32, F32, qkv.Stats[F32]],
)
assert_type(qkv.reference.attention(f32, f32, f32, return_lse=True), tuple[F32, F32])
assert_type(qkv.attention(f32, f32, f32, return_lse=bool(f32.size)), Any)
assert_type(qkv.merge_states([f32], [f32]), tuple[F32, F32])
assert_type(qkv.masks.padding([1, 2], 3), npt.NDArray[np.bool_])
rope = qkv.position.Rope(4, scaling={"rope_type": "linear", "factor": 2.0})
assert_type(rope.apply(f32, first=3), F32)
assert_type(rope.frequencies(), F64)
assert_type(qkv.position.learned(f64, [0, 1]), F64)
assert_type(qkv.position.t5_bucket(3), int)
assert_type(qkv.position.t5_bias(f32, 3, 4), F32)
qkv.attention(f32, f32, f32, cauzal=True)  # type: ignore[call-overload]
qkv.attention(f32, f32, f32, window=(1.5, 0))  # type: ignore[arg-type]
qkv.attention(f32, f32, f32, return_logits="raw")  # type: ignore[call-overload]
"""


TYPED_TENSORS = """
from typing import assert_type
import torch
import qkv

t = torch.ones(1, 2, 3, 4)
assert_type(qkv.attention(t, t, t), torch.Tensor)
assert_type(qkv.attention(t, t, t, return_stats=True), tuple[torch.Tensor, qkv.Stats[torch.Tensor]])
assert_type(qkv.merge_states([t], [t]), tuple[torch.Tensor, torch.Tensor])
assert_type(qkv.position.Rope(4).apply(t), torch.Tensor)
"""

# The part of torch's own declarations that counts here; all of them take minutes to read.
TORCH_STUB = """
class Tensor:
    requires_grad: bool
    def detach(self) -> Tensor: ...

def ones(*shape: int) -> Tensor: ...
"""

MYPY = """
[mypy]
strict = True
[mypy-torch.*,transformers.*,onnx.*,google.protobuf.*,ml_dtypes.*]
ignore_missing_imports = True
follow_imports = {torch}
[mypy-qkv.hf,qkv.onnx.*]
follow_imports = skip
"""


@pytest.mark.slow
@pytest.mark.needs("mypy")
@pytest.mark.parametrize("tensors", [False, True])
def test_types(tensors: bool, tmp_path: pathlib.Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED_TENSORS if tensors else TYPED)
    (tmp_path / "mypy.ini").write_text(MYPY.format(torch="normal" if tensors else "skip"))
    if tensors:
        (tmp_path / "torch.pyi").write_text(TORCH_STUB)
    files = [str(tmp_path / "typed.py")] if tensors else ["-p", "qkv", "-p", "typed"]
    paths = os.pathsep.join([str(FOLDER.parent), str(tmp_path)])
    result = run("-m", "mypy", "--config-file", str(tmp_path / "mypy.ini"), *files, MYPYPATH=paths)
    assert "Success" in result.stdout
