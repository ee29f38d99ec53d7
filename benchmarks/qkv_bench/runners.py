"""Who computes a case: qkv, PyTorch, ONNX Runtime, OpenVINO, each in the fastest way that it has.

A runner gets the arrays of a case and returns a call that does nothing but compute: constants, layouts and sessions are
made before. Its result is compared with qkv's before it is timed.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import qkv
from qkv_bench.cases import Array, Case, Inputs, dense_mask
from qkv_bench.dtypes import FLOAT32, TOLERANCES
from qkv_bench.storage import name_of, relative_difference, torch_tensor

#: Largest difference from qkv's float32 result with which a peer is still computing the same thing.
TOLERANCE = TOLERANCES[FLOAT32]


class UnableError(Exception):
    """A runner can not do a case, or is not installed; the text says why."""


def do_nothing() -> None:
    """What a runner does before a sample if nothing has to be set."""


@dataclass
class Prepared:
    """A case that is ready to run: `call` is timed, `result` runs it once and returns [batch, heads, length, dim].

    `keep` is the memory that the libraries were given a pointer to.
    """

    call: Callable[[], object]
    result: Callable[[], Array]
    variant: str = ""
    before_sample: Callable[[], object] = do_nothing
    keep: object = None


class Runner(Protocol):
    """One library."""

    name: str
    version: str

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Prepares a case. Raises UnableError."""


class QkvRunner:
    """qkv on NumPy arrays; the result is a new array in every call."""

    name = "qkv"
    version = qkv.__version__

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Every case can be done."""
        q, k, v = inputs.q, inputs.k, inputs.v
        options = options_of(case, inputs)

        def call() -> Any:
            return qkv.attention(q, k, v, **options)

        def result() -> Array:
            out: Array = call()[0] if case.stats else call()
            return out

        return Prepared(call, result, before_sample=lambda: qkv.set_num_threads(threads))


class QkvFloat32Runner:
    """qkv on the same numbers in float32: what storage in 16 bits gains or costs, in the same rounds."""

    name = "qkv float32"
    version = qkv.__version__

    def __init__(self, runner: Runner | None = None) -> None:
        """Of what `runner` computes; of attention if none is given."""
        self._runner = runner or QkvRunner()

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Every case can be done."""
        wide = {name: getattr(inputs, name).astype(np.float32) for name in ("q", "k", "v", "grad")}
        return self._runner.make(case, dataclasses.replace(inputs, **wide), threads)


def options_of(case: Case, inputs: Inputs) -> dict[str, Any]:
    """The keyword arguments of qkv.attention: those that the case has, and no others."""
    wanted = {
        "causal": case.causal or None,
        "window": case.window,
        "mask": inputs.mask,
        "kv_lens": case.kv_lens,
        "bias": inputs.bias,
        "return_stats": case.stats or None,
    }
    return {name: value for name, value in wanted.items() if value is not None}


class TorchRunner:
    """scaled_dot_product_attention of PyTorch, by the fused kernel for CPUs."""

    name = "torch"

    def __init__(self) -> None:
        """Raises UnableError without PyTorch."""
        self._torch = import_peer("torch")
        self.version = str(self._torch.__version__)

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Contiguous tensors; causality by is_causal, or in the mask where there is one already."""
        refuse_stats(case)
        torch = self._torch
        attend = torch.nn.functional.scaled_dot_product_attention
        q, k, v = (torch_tensor(torch, array) for array in (inputs.q, inputs.k, inputs.v))
        mask = dense_mask(case, inputs)
        extra = mask if inputs.bias is None else inputs.bias
        options: dict[str, Any] = {"is_causal": case.causal and extra is None}
        if extra is not None:
            options["attn_mask"] = torch.from_numpy(extra)

        def call() -> Any:
            with torch.no_grad():
                return attend(q, k, v, **options)

        def result() -> Array:
            # Raises where the fused kernel can not be used: the call would then run another one.
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                return np.asarray(call().float())

        return Prepared(call, result, before_sample=lambda: torch.set_num_threads(threads))


def refuse_stats(case: Case) -> None:
    """No peer has statistics. Raises UnableError."""
    if case.stats:
        raise UnableError("has no statistics")


def import_peer(module: str) -> Any:
    """The module. Raises UnableError where it is not installed or does not load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnableError("not installed" if error.name == module else f"does not load: {error}") from error


def find_runners(peers: bool = True, dtype: str = FLOAT32) -> tuple[list[Runner], dict[str, str]]:
    """Those that can run here, qkv first, and why each of the others can not; without peers, qkv alone.

    Beside 16 bits stands qkv in float32, always.
    """
    found: list[Runner] = [QkvRunner()]
    if dtype != FLOAT32:
        found.append(QkvFloat32Runner())
    if not peers:
        return found, {}
    from qkv_bench.onnx_runner import OnnxRunner
    from qkv_bench.openvino_runner import OpenVinoRunner

    missing: dict[str, str] = {}
    kinds: list[type[TorchRunner] | type[OnnxRunner] | type[OpenVinoRunner]] = [TorchRunner, OnnxRunner, OpenVinoRunner]
    for peer in kinds:
        try:
            found.append(peer())
        except UnableError as error:
            missing[peer.name] = str(error)
    return found, missing


def prepare_checked(runner: Runner, case: Case, inputs: Inputs, threads: int, expected: Array | None) -> Prepared:
    """Prepares a case and compares its result with `expected`. Raises UnableError if it is something else."""
    prepared = runner.make(case, inputs, threads)
    prepared.before_sample()
    if expected is None:
        return prepared
    try:
        result = prepared.result()
    except Exception as error:  # each library has exceptions of its own
        raise UnableError(f"fails: {str(error).strip().splitlines()[0][:120]}") from error
    check_result(result, expected)
    return prepared


def check_result(result: Array, expected: Array) -> None:
    """Raises UnableError unless the two agree to TOLERANCE, or in 16 bits as a whole; NaN agrees with nothing."""
    if result.shape != expected.shape:
        raise UnableError(f"computes another thing: its result has shape {list(result.shape)}")
    if name_of(expected) == FLOAT32:
        difference, limit = float(np.max(np.abs(result - expected), initial=0.0)), TOLERANCE
    else:
        difference, limit = relative_difference(result, expected), TOLERANCES[name_of(expected)]
    if not difference <= limit:
        raise UnableError(f"computes another thing: its result differs by {difference:.1e}")
