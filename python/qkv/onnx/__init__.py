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

try:
    import onnx as _onnx  # noqa: F401 - absolute: the package of that name, not this one
except ImportError as error:
    raise ImportError(f"qkv.onnx needs onnx ({error}); install it with: pip install onnx") from error

from qkv.onnx._backend import Backend, run

__all__ = ["Backend", "run"]
