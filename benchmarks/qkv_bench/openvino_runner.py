"""OpenVINO: a model of one operator, scaled_dot_product_attention, compiled for the CPU."""

from __future__ import annotations

import numpy as np

from qkv_bench.cases import Array, Case, Inputs, dense_mask
from qkv_bench.runners import Prepared, UnableError, import_peer, refuse_stats


class OpenVinoRunner:
    """In float32, for the latency of one request; inputs and output are shared with NumPy."""

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
            parameters = [ops.parameter(list(array.shape), array.dtype) for array in feeds]
            node = ops.scaled_dot_product_attention(*parameters, causal=case.causal and extra is None)
            compiled = self._core.compile_model(ov.Model([node], parameters, "attention"), "CPU", _settings(threads))
            request = compiled.create_infer_request()
            for i, array in enumerate(feeds):
                request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))
            out = np.zeros(case.shape, np.float32)
            request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))
        except RuntimeError as error:
            raise UnableError(f"fails: {str(error).strip().splitlines()[0][:120]}") from error

        def result() -> Array:
            request.infer()
            return out

        return Prepared(request.infer, result, keep=(feeds, out))


def _settings(threads: int) -> dict[str, object]:
    """Float32 even where the CPU has bfloat16, as all others compute; threads where the system puts them, as all."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }
