"""The yardstick: the same contract in scalar double precision, one row at a time. Slow, and easy to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from qkv import _attention, _backward, _core, _varlen

__all__ = ["attention", "attention_backward", "attention_varlen", "attention_varlen_backward"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _with_signature_of(model: _F) -> Callable[[Callable[..., Any]], _F]:
    """Gives a function that passes its arguments on the types, the signature and the defaults of ``model``."""

    def decorate(function: Callable[..., Any]) -> _F:
        function.__wrapped__ = model  # type: ignore[attr-defined]  # what inspect.signature follows
        return cast("_F", function)

    return decorate


@_with_signature_of(_attention.attention)
def attention(q: Any, k: Any, v: Any = None, **options: Any) -> Any:
    """`qkv.attention`, computed by the reference: the same arguments, results and errors."""
    return _core.reference_attention(q, k, v, options)


@_with_signature_of(_varlen.attention_varlen)
def attention_varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any) -> Any:
    """`qkv.attention_varlen`, computed by the reference: the same arguments, results and errors."""
    return _core.reference_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, options)


@_with_signature_of(_backward.attention_backward)
def attention_backward(grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, **options: Any) -> Any:
    """`qkv.attention_backward`, computed by the reference: the same arguments, results and errors."""
    return _core.reference_attention_backward(grad_out, q, k, v, out, lse, options)


@_with_signature_of(_backward.attention_varlen_backward)
def attention_varlen_backward(
    grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any
) -> Any:
    """`qkv.attention_varlen_backward`, computed by the reference: the same arguments, results and errors."""
    return _core.reference_attention_varlen_backward(grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, options)
