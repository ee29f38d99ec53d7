"""ONNX models on qkv: graphs of Attention and of the operators that stand around it.

    import qkv.onnx
    y, *caches = qkv.onnx.run("model.onnx", {"Q": q, "K": k, "V": v})

It knows Attention (opset 23, 24 and 25), RotaryEmbedding, RMSNormalization (23) and TensorScatter (24), each with every
input, attribute and output that the specification has; models of opset 23 to 28 are read. Attention is computed by
`qkv.attention`, so what that promises holds: hidden keys are absent, a row that sees nothing is 0, the same bits every
time. Whatever else a graph holds is refused with the name of the node.

`Backend` is the same for programs that speak `onnx.backend`.
"""

from __future__ import annotations

import re as _re

try:
    import ml_dtypes as _ml_dtypes  # noqa: F401 - comes with onnx
    import onnx as _onnx  # absolute: the package of that name, not this one

    if tuple(map(int, _re.findall(r"\d+", _onnx.__version__)[:2])) < (
        1,
        23,
    ):  # which knows neither operators nor opsets
        raise ImportError(f"found onnx {_onnx.__version__}")
except ImportError as error:
    raise ImportError(
        f"qkv.onnx needs onnx 1.23 or newer ({error}); install it with: pip install 'onnx>=1.23'"
    ) from error

from qkv.onnx._backend import Backend, run

__all__ = ["Backend", "run"]
