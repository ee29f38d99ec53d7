"""Dtypes as arguments: by name, NumPy's or PyTorch's."""

from __future__ import annotations

from typing import Any

__all__ = ["dtype_name", "is_torch_dtype"]


def dtype_name(dtype: Any) -> str:
    """The name of a dtype given as such, as NumPy's or as PyTorch's; the library refuses what is none of them."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return str(name).removeprefix("torch.")


def is_torch_dtype(dtype: Any) -> bool:
    """Whether it is PyTorch's, without importing that."""
    return type(dtype).__module__ == "torch"
