"""qkv.attention_backward and its ragged form: signatures and documentation; types by kind are in _backward.pyi."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar, cast

from qkv import _core
from qkv._types import Gradients, Need, SupportsDLPack, Window

__all__ = ["attention_backward", "attention_varlen_backward"]

_F = TypeVar("_F", bound=Callable[..., Any])


def _computed_by(run: Callable[[Any, Any, Any, Any, Any, Any, dict[str, Any]], Any]) -> Callable[[_F], _F]:
    """Gives a signature and its documentation a body, as `qkv.attention` has it."""

    def decorate(model: _F) -> _F:
        @functools.wraps(model)
        def function(grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, **options: Any) -> Any:
            return run(grad_out, q, k, v, out, lse, options)

        return cast("_F", function)

    return decorate


def _computed_by_varlen(
    run: Callable[[Any, Any, Any, Any, Any, Any, Any, Any, dict[str, Any]], Any],
) -> Callable[[_F], _F]:
    """The same with the lengths of a ragged batch."""

    def decorate(model: _F) -> _F:
        @functools.wraps(model)
        def function(
            grad_out: Any,
            q: Any,
            k: Any,
            v: Any,
            out: Any,
            lse: Any,
            cu_seqlens_q: Any,
            cu_seqlens_k: Any,
            **options: Any,
        ) -> Any:
            return run(grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, options)

        return cast("_F", function)

    return decorate


@_computed_by(_core.attention_backward)
def attention_backward(
    grad_out: SupportsDLPack,
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    out: SupportsDLPack,
    lse: SupportsDLPack,
    *,
    mask: SupportsDLPack | None = None,
    bias: SupportsDLPack | None = None,
    causal: bool = False,
    query_offset: int | Iterable[int] | SupportsDLPack | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: SupportsDLPack | None = None,
    alibi_slopes: SupportsDLPack | None = None,
    kv_lens: int | Iterable[int] | SupportsDLPack | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    grad_lse: SupportsDLPack | None = None,
    grad_entropy: SupportsDLPack | None = None,
    need: Collection[Need] = ("q", "k", "v"),
) -> Gradients[Any]:
    """Gradients of a loss L by the arguments of `qkv.attention`, from its gradient by the result.

    Weights are computed again from q, k and lse, a block of keys at a time: O(q_len + kv_len) memory, unless the
    gradient of a bias of that size is asked for.

    Parameters
    ----------
    grad_out : array, shape [batch, num_heads, q_len, value_dim]
        dL/d out, q's dtype; any strides, 0 too (what ``expand`` gives).
    q, k, v : arrays
        What `qkv.attention` was given.
    out : array, shape [batch, num_heads, q_len, value_dim]
        What it returned.
    lse : array, shape [batch, num_heads, q_len]
        What it returned for ``return_lse=True``.
    mask, bias, causal, query_offset, window, scale, softcap, sinks, alibi_slopes, kv_lens, dropout, seed
        The options of that call, as `qkv.attention` documents them.
    grad_lse : array, shape [batch, num_heads, q_len], optional
        dL/d lse, where L depends on it: the dtype of lse.
    grad_entropy : array, shape [batch, num_heads, q_len], optional
        dL/d `Stats.entropy`, the same.
    need : names among "q", "k", "v", "bias" and "sinks", default ("q", "k", "v")
        Which gradients to compute.

    Returns
    -------
    Gradients of arrays
        Each of q's kind (NumPy for a DLPack object), and of the shape and dtype of its argument: that of a bias is
        summed over the axes in which it repeats. None for what is not needed.

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError, MemoryError
        As `qkv.attention`; a need of a bias or sinks that are not given is a ValueError.

    Notes
    -----
    A row that sees nothing gives 0. Where a row sees one key alone, its share of the gradients of q and k from grad_out
    is exactly 0. What is hidden from a row gets exactly nothing from it, even if one of them holds NaN; a visible NaN
    makes NaN of what depends on it. The same bits every time, for any number of threads.

    The interpreter lock is released while it computes, unless q, k and v have at most 64 elements each.

    References
    ----------
    Dao et al. 2022, FlashAttention, arXiv:2205.14135.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8))
    >>> out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
    >>> grads = qkv.attention_backward(np.ones_like(out), q, k, v, out, lse, causal=True)
    >>> grads.q.shape, grads.bias
    ((1, 2, 5, 8), None)
    """


@_computed_by_varlen(_core.attention_varlen_backward)
def attention_varlen_backward(
    grad_out: SupportsDLPack,
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
    out: SupportsDLPack,
    lse: SupportsDLPack,
    cu_seqlens_q: Iterable[int] | SupportsDLPack,
    cu_seqlens_k: Iterable[int] | SupportsDLPack,
    *,
    causal: bool = False,
    query_offset: int | Iterable[int] | SupportsDLPack | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: SupportsDLPack | None = None,
    alibi_slopes: SupportsDLPack | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    grad_lse: SupportsDLPack | None = None,
    grad_entropy: SupportsDLPack | None = None,
    need: Collection[Need] = ("q", "k", "v"),
) -> Gradients[Any]:
    """Gradients of a loss by the arguments of `qkv.attention_varlen`: `qkv.attention_backward` within each segment.

    Parameters
    ----------
    grad_out, out : arrays, shape [total_q, num_heads, value_dim]
        dL/d out, and out itself.
    q, k, v, cu_seqlens_q, cu_seqlens_k
        What `qkv.attention_varlen` was given.
    lse : array, shape [num_heads, total_q]
        What it returned for ``return_lse=True``.
    causal, query_offset, window, scale, softcap, sinks, alibi_slopes, dropout, seed
        The options of that call.
    grad_lse, grad_entropy : arrays, shape [num_heads, total_q], optional
        dL/d lse and dL/d `Stats.entropy`, where L depends on them.
    need : names among "q", "k", "v" and "sinks", default ("q", "k", "v")
        Which gradients to compute.

    Returns
    -------
    Gradients of arrays
        As `qkv.attention_backward`. Keys of a segment without queries and queries of one without keys have 0. The
        gradient of sinks of shape [num_heads] is the sum over the segments.

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError, MemoryError
        As `qkv.attention_varlen` and `qkv.attention_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> q = k = v = np.ones((5, 2, 8), np.float32)  # two sequences, of 2 and of 3
    >>> out, lse = qkv.attention_varlen(q, k, v, [0, 2, 5], [0, 2, 5], return_lse=True)
    >>> grads = qkv.attention_varlen_backward(np.ones_like(out), q, k, v, out, lse, [0, 2, 5], [0, 2, 5])
    >>> grads.v[:, 0, 0].tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
