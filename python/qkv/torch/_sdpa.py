"""qkv.torch.scaled_dot_product_attention: PyTorch's function, on qkv."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from qkv import _core
from qkv._errors import ShapeError
from qkv.torch._direct import explain, is_plain, new_seed, refuse_transforms
from qkv.torch._ops import dense

__all__ = ["scaled_dot_product_attention"]

_is_compiling: Final[Any] = torch.compiler.is_compiling
_forward: Final[Any] = _core.attention
_operator: Final[Any] = dense.attention


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch.nn.functional.scaled_dot_product_attention, with its signature and meaning, computed by qkv.

    Parameters
    ----------
    query : tensor, shape [..., q_len, head_dim]
        At least two axes; leading ones broadcast with those of key and value.
    key, value : tensors, shapes [..., kv_len, head_dim] and [..., kv_len, value_dim]
        Of query's dtype.
    attn_mask : bool or float tensor, optional
        Bool: True = attend. Float: added to the logits, and differentiable. Broadcasts to [..., q_len, kv_len].
    dropout_p : float, default 0.0
        Applied whenever it is above 0, drawn from PyTorch's default generator.
    is_causal : bool, default False
        Row i attends to keys 0..i, aligned at the top left. Together with an attn_mask, both hide (PyTorch refuses).
    scale : float, optional
        Default ``1 / sqrt(head_dim)``.
    enable_gqa : bool, default False
        key and value may have fewer heads (the third axis from the end): query head h reads
        ``h // (num_heads // num_kv_heads)``.

    Returns
    -------
    tensor, shape [..., q_len, value_dim]
        A row that sees nothing is 0.

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError, MemoryError
        As `qkv.attention`, and what is no real, dense tensor on the CPU.
    NotImplementedError
        A second derivative.

    Examples
    --------
    >>> import torch
    >>> import qkv.torch
    >>> x = torch.randn(2, 8, 16, 64)
    >>> ours = qkv.torch.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> torch.allclose(ours, torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), atol=1e-5)
    True
    """
    if _is_compiling():
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    try:
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    except Exception:
        # What is wrong with a tensor is looked for only now: a call should cost no more than its attention.
        explain(query=query, key=key, value=value)
        if attn_mask is not None:
            explain(attn_mask=attn_mask)
        raise


def _attend(
    query: Any, key: Any, value: Any, attn_mask: Any, dropout: float, causal: bool, scale: float | None, gqa: bool
) -> Any:
    q_shape, k_shape, v_shape = query.shape, key.shape, value.shape
    if not key.dtype == value.dtype == query.dtype:
        raise TypeError(f"query, key, value: expected one dtype, got {query.dtype}, {key.dtype} and {value.dtype}")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout_p: expected a probability in 0..1, got {dropout}")
    mask, bias = (None, None) if attn_mask is None else _split(attn_mask, query)
    if (
        len(q_shape) == 4
        and 0 not in q_shape
        and k_shape[:2] == v_shape[:2]
        and (k_shape[:2] == q_shape[:2] or (gqa and k_shape[0] == q_shape[0]))
        and (attn_mask is None or attn_mask.dim() <= 2 or _repeats_onto(attn_mask.shape[:-2], q_shape[:2]))
    ):
        return _attend_dense(query, key, value, mask, bias, dropout, causal, scale)
    return _attend_broadcast(query, key, value, mask, bias, dropout, causal, scale, gqa)


def _split(attn_mask: Any, query: Any) -> tuple[Any, Any]:
    """What hides, and what is added."""
    dtype = attn_mask.dtype
    if dtype == torch.bool:
        return attn_mask, None
    if dtype == query.dtype:
        return None, attn_mask
    if dtype == torch.float32:  # which PyTorch takes beside any dtype, and qkv beside 16 bits
        return None, attn_mask.to(query.dtype) if query.dtype == torch.float64 else attn_mask
    if torch.is_autocast_enabled("cpu") and attn_mask.is_floating_point():
        return None, attn_mask
    raise TypeError(f"attn_mask: {dtype}; expected bool (True = attend; use mask != 0), float32 or {query.dtype}")


def _attend_dense(
    query: Any, key: Any, value: Any, mask: Any, bias: Any, dropout: float, causal: bool, scale: float | None
) -> Any:
    """On [batch, heads, length, dim], with masks of at most four axes."""
    if not dropout and is_plain(query, key, value, mask, bias):
        options: dict[str, Any] = {"query_offset": 0}
        if mask is not None:
            options["mask"] = mask
        if bias is not None:
            options["bias"] = bias
        if causal:
            options["causal"] = causal
        if scale is not None:
            options["scale"] = scale
        if not query.is_contiguous() and query.shape[-1] == value.shape[-1]:
            options["out"] = torch.empty_like(query)
        return _forward(query, key, value, options)
    if not _is_compiling():
        refuse_transforms()
    seed = new_seed(dropout)
    return _operator(
        query, key, value, mask, bias, None, None, None, None, seed, causal, 0, None, None, scale, 0.0, dropout
    )[0]


def _repeats_onto(extents: Any, shape: Any) -> bool:
    """Whether axes are those of the shape, or 1."""
    return len(extents) <= len(shape) and all(
        a in (1, b) for a, b in zip(reversed(extents), reversed(shape), strict=False)
    )


def _broadcast(name: str, *shapes: Any) -> tuple[Any, ...]:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        seen = ", ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(f"{name}: cannot broadcast {seen} to one shape") from None


def _attend_broadcast(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    bias: Any,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Any:
    """On any leading axes: they are brought to one shape, and all before the heads become one batch."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < (3 if gqa else 2):
            raise ShapeError(f"{name}: shape {list(tensor.shape)}, expected at least {3 if gqa else 2} axes")
    added = mask if mask is not None else bias
    if added is not None and gqa:
        added_lead = tuple(added.shape[:-3])
    else:
        added_lead = () if added is None else tuple(added.shape[:-2])
    if gqa:
        outer = _broadcast("query, key, value", *(x.shape[:-3] for x in (query, key, value)), added_lead)
        heads, kv_heads = query.shape[-3], max(key.shape[-3], value.shape[-3])
        lead = (*outer, heads)
    else:
        lead = _broadcast("query, key, value", *(x.shape[:-2] for x in (query, key, value)), added_lead)
        outer, heads = (lead[:-1], lead[-1]) if lead else ((), 1)
        kv_heads = heads
    batch = math.prod(outer)
    if not batch * heads:  # nothing to compute, but a graph to record
        query, key, value = (x.expand(*lead, *x.shape[-2:]).reshape(0, 1, *x.shape[-2:]) for x in (query, key, value))
        out = _attend_dense(query, key, value, None, None, dropout, causal, scale)
        return out.reshape(*lead, *out.shape[-2:])
    query, key, value = (
        x.expand(*outer, n, *x.shape[-2:]).reshape(batch, n, *x.shape[-2:])
        for x, n in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    if added is not None:
        added = _flatten(added, outer, batch)
        mask, bias = (added, None) if mask is not None else (None, added)
    out = _attend_dense(query, key, value, mask, bias, dropout, causal, scale)
    return out.reshape(*lead, *out.shape[-2:])


def _flatten(added: Any, outer: tuple[Any, ...], batch: int) -> Any:
    """A mask whose axes before the heads are one; a copy only if some of them differ and some repeat."""
    own = added.shape[:-3]
    if added.dim() <= 3 or (len(outer) == 1 and added.dim() == 4):
        return added
    if all(extent == 1 for extent in own):
        return added.reshape(added.shape[-3:])
    return added.expand(*outer, *added.shape[-3:]).reshape(batch, *added.shape[-3:])
