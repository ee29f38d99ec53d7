"""The operators that are known, by name and opset."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

import qkv
from qkv.onnx._attention import attention
from qkv.onnx._norm import rms_normalization
from qkv.onnx._operator import Attribute, Operator
from qkv.onnx._rotary import rotary_embedding
from qkv.onnx._scatter import tensor_scatter

#: Opsets of models that are read. None of the operators below has changed from 26 to 28.
OPSETS: Final = range(23, 29)

_ATTENTION_23: Final = Operator(
    "Attention",
    since=23,
    inputs=("Q", "K", "V", "attn_mask", "past_key", "past_value"),
    required=3,
    outputs=("Y", "present_key", "present_value", "qk_matmul_output"),
    compute=attention,
    attributes={
        "is_causal": Attribute(int, 0),
        "kv_num_heads": Attribute(int),
        "q_num_heads": Attribute(int),
        "qk_matmul_output_mode": Attribute(int, 0),
        "scale": Attribute(float),
        "softcap": Attribute(float, 0.0),
        "softmax_precision": Attribute(int),
    },
)
_ATTENTION_24: Final = replace(_ATTENTION_23, since=24, inputs=(*_ATTENTION_23.inputs, "nonpad_kv_seqlen"))
_ATTENTION_25: Final = replace(
    _ATTENTION_24,
    since=25,
    attributes={
        **_ATTENTION_24.attributes,
        "left_window_size": Attribute(int, -1),
        "right_window_size": Attribute(int, -1),
    },
)
_ROTARY_23: Final = Operator(
    "RotaryEmbedding",
    since=23,
    inputs=("X", "cos_cache", "sin_cache", "position_ids"),
    required=3,
    outputs=("Y",),
    compute=rotary_embedding,
    attributes={
        "interleaved": Attribute(int, 0),
        "num_heads": Attribute(int),
        "rotary_embedding_dim": Attribute(int, 0),
    },
)
_RMS_23: Final = Operator(
    "RMSNormalization",
    since=23,
    inputs=("X", "scale"),
    required=2,
    outputs=("Y",),
    compute=rms_normalization,
    # Attributes are float32, and so is what a default stands for.
    attributes={
        "axis": Attribute(int, -1),
        "epsilon": Attribute(float, float(np.float32(1e-5))),
        "stash_type": Attribute(int, 1),
    },
)
_SCATTER_24: Final = Operator(
    "TensorScatter",
    since=24,
    inputs=("past_cache", "update", "write_indices"),
    required=2,
    outputs=("present_cache",),
    compute=tensor_scatter,
    attributes={"axis": Attribute(int, -2), "mode": Attribute(str, "linear")},
)
_ALL: Final = (_ATTENTION_23, _ATTENTION_24, _ATTENTION_25, _ROTARY_23, _RMS_23, _SCATTER_24)


def find_operator(name: str, opset: int) -> Operator:
    """The version that is in force at an opset. ValueError where there is none."""
    versions = [operator for operator in _ALL if operator.name == name]
    if not versions:
        known = ", ".join(sorted({operator.name for operator in _ALL}))
        raise qkv.ValueError(f"the operator {name} is not known; expected one of {known}")
    in_force = [operator for operator in versions if operator.since <= opset]
    if not in_force:
        raise qkv.ValueError(f"{name} begins with opset {versions[0].since}, the model has {opset}")
    return in_force[-1]
