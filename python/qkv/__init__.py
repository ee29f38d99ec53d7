"""Exact, bit-reproducible attention on CPUs, for NumPy arrays and PyTorch tensors.

>>> import numpy as np
>>> import qkv
>>> q = k = v = np.ones((2, 8, 16, 64), np.float32)
>>> qkv.attention(q, k, v, causal=True).shape
(2, 8, 16, 64)

`qkv.torch` puts it into PyTorch models; `qkv.hf` runs Hugging Face models on it and needs torch and transformers;
`qkv.onnx` runs ONNX models and needs onnx. They are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv import _core, masks, position, reference
from qkv._attention import attention
from qkv._backward import attention_backward, attention_varlen_backward
from qkv._cache import KVCache, PagedKVCache
from qkv._config import available_targets, config, num_threads, set_num_threads, set_target, show_config, target
from qkv._errors import DtypeError, Error, ShapeError
from qkv._errors import ValueError as ValueError  # noqa: A004
from qkv._merge import merge_states
from qkv._types import Gradients, Select, Stats
from qkv._varlen import attention_varlen

if TYPE_CHECKING:
    from qkv import hf as hf
    from qkv import onnx as onnx
    from qkv import torch as torch

__version__: str = _core.version()

# Without ValueError, which a star import would put in the place of Python's own.
__all__ = [
    "DtypeError",
    "Error",
    "Gradients",
    "KVCache",
    "PagedKVCache",
    "Select",
    "ShapeError",
    "Stats",
    "attention",
    "attention_backward",
    "attention_varlen",
    "attention_varlen_backward",
    "available_targets",
    "config",
    "masks",
    "merge_states",
    "num_threads",
    "position",
    "reference",
    "set_num_threads",
    "set_target",
    "show_config",
    "target",
]

_LAZY_MODULES = frozenset({"hf", "onnx", "torch"})


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        import importlib

        return importlib.import_module(f"qkv.{name}")
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_MODULES])
