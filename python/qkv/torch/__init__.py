"""qkv in PyTorch: differentiable, compiled, and in the place of PyTorch's own attention.

    import qkv.torch
    with qkv.torch.patch():
        model(x)

`scaled_dot_product_attention` has the signature and the meaning of PyTorch's. `attention` and `attention_varlen` have
the options of `qkv.attention`. They are registered operators, ``torch.ops.qkv.attention`` and its kin: gradients,
torch.compile, autocast and fake tensors work.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 - the package of that name, not this one
except ImportError as error:
    raise ImportError(f"qkv.torch needs PyTorch ({error}); install it with: pip install torch") from error

from qkv.torch._attention import attention, attention_varlen
from qkv.torch._modules import MultiheadAttention, TransformerEncoderLayer
from qkv.torch._multihead import multi_head_attention_forward
from qkv.torch._patch import patch
from qkv.torch._sdpa import scaled_dot_product_attention

__all__ = [
    "MultiheadAttention",
    "TransformerEncoderLayer",
    "attention",
    "attention_varlen",
    "multi_head_attention_forward",
    "patch",
    "scaled_dot_product_attention",
]
