"""qkv.torch.patch: existing models on qkv, for the length of a with block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from qkv.torch._sdpa import scaled_dot_product_attention

__all__ = ["patch"]

_F: Final[Any] = torch.nn.functional
_mha: Final[Any] = torch.backends.mha


@contextlib.contextmanager
def patch() -> Iterator[None]:
    """Puts `scaled_dot_product_attention` in the place of torch.nn.functional's, and back again at the end.

    The fast path of torch.nn.MultiheadAttention and torch.nn.TransformerEncoderLayer, which would go around that
    function, is turned off meanwhile. Blocks may be nested; an exception ends one as anything else does. It is for the
    whole process: other threads see it too.

    What it does not reach: code that imported the function by its own name before (``from torch.nn.functional import
    scaled_dot_product_attention``), attention written out in products of matrices (``need_weights=True``), and
    functions that torch.compile compiled before.

    Examples
    --------
    >>> import torch
    >>> import qkv.torch
    >>> with qkv.torch.patch():
    ...     torch.nn.functional.scaled_dot_product_attention is qkv.torch.scaled_dot_product_attention
    True
    """
    before, fastpath = _F.scaled_dot_product_attention, _mha.get_fastpath_enabled()
    _F.scaled_dot_product_attention = scaled_dot_product_attention
    _mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        _F.scaled_dot_product_attention = before
        _mha.set_fastpath_enabled(fastpath)
