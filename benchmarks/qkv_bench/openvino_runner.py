"""OpenVINO: a model of one operator, scaled_dot_product_attention, compiled for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv_bench.cases import Array, Case, Inputs, dense_mask
from qkv_bench.dtypes import BFLOAT16, FLOAT16, FLOAT32
from qkv_bench.runners import Prepared, UnableError, import_peer, refuse_stats
from qkv_bench.storage import name_of

PRECISIONS = {FLOAT32: "f32", BFLOAT16: "bf16", FLOAT16: "f16"}


class OpenVinoRunner:
    """In the dtype of the case, for the latency of one request; inputs and output are shared with NumPy."""

    name = "openvino"

    def __init__(self) -> None:
        """Raises UnableError without OpenVINO."""
        self._ov = import_peer("openvino")
        self._ops = import_peer("openvino.opset13")
        self.version = str(self._ov.__version__).split("-")[0]
        self._core = self._ov.Core()

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Compiles the model of a case. A mask is given where the operator's own causality does not say it all."""
        refuse_stats(case)
        ov, ops = self._ov, self._ops
        mask = dense_mask(case, inputs)
        extra = mask if inputs.bias is None else inputs.bias
        feeds = [inputs.q, inputs.k, inputs.v] + ([] if extra is None else [extra])
        try:
            parameters = [ops.parameter(list(array.shape), self._type_of(array)) for array in feeds]
            node = ops.scaled_dot_product_attention(*parameters, causal=case.causal and extra is None)
            model, settings = ov.Model([node], parameters, "attention"), _settings(case.dtype, threads)
            compiled = self._core.compile_model(model, "CPU", settings)
            self._refuse_other_precision(compiled, case.dtype)
            request = compiled.create_infer_request()
            for i, array in enumerate(feeds):
                request.set_input_tensor(i, self._shared(array))
            out = np.zeros(case.shape, inputs.q.dtype)
            request.set_output_tensor(0, self._shared(out))
        except RuntimeError as error:
            raise UnableError(f"fails: {str(error).strip().splitlines()[0][:120]}") from error

        def result() -> Array:
            request.infer()
            return out

        return Prepared(request.infer, result, keep=(feeds, out))

    def _type_of(self, array: Array) -> Any:
        return self._ov.Type.bf16 if name_of(array) == BFLOAT16 else array.dtype

    def _shared(self, array: Array) -> Any:
        """OpenVINO has no bfloat16 of NumPy's: it is told what the memory holds."""
        if name_of(array) == BFLOAT16:
            return self._ov.Tensor(array.view(np.int16), list(array.shape), self._ov.Type.bf16)
        return self._ov.Tensor(array, shared_memory=True)

    def _refuse_other_precision(self, compiled: Any, dtype: str) -> None:
        """The hint is only a hint. Raises UnableError where the model computes in something else."""
        precision = compiled.get_property("INFERENCE_PRECISION_HINT")
        if precision != getattr(self._ov.Type, PRECISIONS[dtype]):
            raise UnableError(f"computes {dtype} in {precision.to_string()} on this CPU")


def _settings(dtype: str, threads: int) -> dict[str, object]:
    """The precision of the operands, as all others: OpenVINO would choose bfloat16 for float32 where the CPU has it.

    Threads are where the system puts them, as all others'.
    """
    return {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }
