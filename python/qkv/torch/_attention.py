"""qkv.torch.attention and attention_varlen: the options of `qkv.attention` over the registered operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from qkv._types import LogitsStage, Select, Stats, Window
from qkv.torch._direct import explain, new_seed, refuse_transforms
from qkv.torch._ops import Operators, dense, ragged

__all__ = ["attention", "attention_varlen"]

_is_compiling: Final[Any] = torch.compiler.is_compiling


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    causal: bool = False,
    query_offset: int | Iterable[int] | torch.Tensor | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    kv_lens: int | Iterable[int] | torch.Tensor | None = None,
    dropout: float = 0.0,
    seed: int | torch.Tensor | None = None,
    return_lse: bool = False,
    return_weights: bool | Select = False,
    return_logits: LogitsStage | None = None,
    return_stats: bool = False,
    stats_keys: int | Iterable[int] | None = None,
) -> Any:
    """`qkv.attention` as an operator of PyTorch's: differentiable, and known to torch.compile and autocast.

    Gradients reach q, k, v, bias and sinks, from out, lse and the entropy of the statistics. Weights, logits and the
    other statistics are detached. Second derivatives are refused.

    Parameters
    ----------
    q : tensor, shape [batch, num_heads, q_len, head_dim]
        float32, float64, float16 or bfloat16 on the CPU; any strides, fewer leading axes, as in `qkv.attention`.
    k, v : tensors, shapes [batch, num_kv_heads, kv_len, head_dim] and [batch, num_kv_heads, kv_len, value_dim]
        The keys and values.
    mask, bias, causal, query_offset, window, scale, softcap, sinks, alibi_slopes, kv_lens
        As in `qkv.attention`; slopes that require grad are refused.
    dropout : float, default 0.0
        The share of weights that is dropped. The caller decides when: there is no training mode here.
    seed : int or int64 tensor of no axes, optional
        Of the dropout; by default drawn from PyTorch's default generator, so that torch.manual_seed repeats it.
    return_lse, return_weights, return_logits, return_stats, stats_keys
        What to return beside out, as in `qkv.attention`.

    Returns
    -------
    out : tensor, shape [batch, num_heads, q_len, value_dim]
        Of q's dtype; where value_dim is head_dim, in q's order of memory. Where anything else is asked for, the tuple
        that `qkv.attention` returns.

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError, MemoryError
        As `qkv.attention`.
    NotImplementedError
        A second derivative.

    Examples
    --------
    >>> import torch
    >>> import qkv.torch
    >>> q = torch.randn(1, 2, 5, 8, requires_grad=True)
    >>> out, lse = qkv.torch.attention(q, q, q, causal=True, return_lse=True)
    >>> (out.sum() + 1e-4 * lse.square().sum()).backward()
    >>> q.grad.shape
    torch.Size([1, 2, 5, 8])
    """
    batch = q.shape[0] if isinstance(q, torch.Tensor) and q.dim() == 4 else 1
    lengths = _lengths(kv_lens, batch)
    offset, offsets = _offsets(query_offset)
    seed = _seed(seed, dropout)
    left, right = (None, None) if window is None else window
    tensors = (mask, bias, sinks, alibi_slopes, lengths, offsets, seed)
    numbers = (causal, offset, left, right, scale, softcap, dropout)
    selected = isinstance(return_weights, Select)
    wanted = None
    if return_weights or return_logits is not None or return_stats or stats_keys is not None:
        chosen = (return_weights.heads, return_weights.rows) if isinstance(return_weights, Select) else (None, None)
        wanted = (return_stats, _ints(stats_keys), return_logits, selected or bool(return_weights), *chosen)
    names = {"mask": mask, "bias": bias, "sinks": sinks, "alibi_slopes": alibi_slopes}
    return _call(dense, (q, k, v), tensors, numbers, wanted, return_lse, names)


def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: Iterable[int] | torch.Tensor,
    cu_seqlens_k: Iterable[int] | torch.Tensor,
    *,
    causal: bool = False,
    query_offset: int | Iterable[int] | torch.Tensor | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    dropout: float = 0.0,
    seed: int | torch.Tensor | None = None,
    return_lse: bool = False,
    return_stats: bool = False,
    stats_keys: int | Iterable[int] | None = None,
) -> Any:
    """`qkv.attention_varlen` as an operator of PyTorch's: attention within each sequence of a ragged batch.

    Parameters
    ----------
    q, k, v : tensors, shapes [total_q, num_heads, head_dim], [total_kv, num_kv_heads, head_dim] and value_dim
        Queries, keys and values of all sequences, one after the other.
    cu_seqlens_q, cu_seqlens_k : int32 or int64 tensors, or ints, of shape [num_segments + 1]
        Cumulative lengths.
    causal, query_offset, window, scale, softcap, sinks, alibi_slopes
        As in `qkv.attention_varlen`.
    dropout, seed, return_lse, return_stats, stats_keys
        As in `qkv.torch.attention`.

    Returns
    -------
    out : tensor, shape [total_q, num_heads, value_dim]
        Differentiable as in `qkv.torch.attention`; or a tuple of out, lse and stats, those that are asked for.

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError, MemoryError, NotImplementedError
        As `qkv.torch.attention` and `qkv.attention_varlen`.
    """
    offset, offsets = _offsets(query_offset)
    seed = _seed(seed, dropout)
    left, right = (None, None) if window is None else window
    operands = (q, k, v, _indices(cu_seqlens_q), _indices(cu_seqlens_k))
    tensors = (None, None, sinks, alibi_slopes, None, offsets, seed)
    numbers = (causal, offset, left, right, scale, softcap, dropout)
    wanted = None
    if return_stats or stats_keys is not None:
        wanted = (return_stats, _ints(stats_keys), None, False, None, None)
    return _call(ragged, operands, tensors, numbers, wanted, return_lse, {"sinks": sinks, "alibi_slopes": alibi_slopes})


def _call(
    operators: Operators,
    operands: tuple[Any, ...],
    tensors: tuple[Any, ...],
    numbers: tuple[Any, ...],
    wanted: tuple[Any, ...] | None,
    return_lse: bool,
    names: dict[str, Any],
) -> Any:
    if _is_compiling():
        return _chosen(_apply(operators, operands, tensors, numbers, wanted), wanted, return_lse)
    refuse_transforms()
    try:
        return _chosen(_apply(operators, operands, tensors, numbers, wanted), wanted, return_lse)
    except Exception:
        # What is wrong with a tensor is looked for only now: a call should cost no more than its attention.
        explain(**dict(zip(("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"), operands, strict=False)))
        explain(**{name: tensor for name, tensor in names.items() if tensor is not None})
        raise


def _apply(operators: Operators, operands: Any, tensors: Any, numbers: Any, wanted: Any) -> Any:
    if wanted is None:
        return operators.attention(*operands, *tensors, *numbers)
    return operators.observed(*operands, *tensors, *numbers, *wanted)


def _chosen(results: Any, wanted: tuple[Any, ...] | None, return_lse: bool) -> Any:
    """What the caller asked for, in the order of `qkv.attention`."""
    out, lse = results[:2]
    if wanted is None:
        return (out, lse) if return_lse else out
    entropy, max_raw, max_logit, max_key, max_weight, key_weight, logits, weights = results[2:]
    answer = [out]
    if return_lse:
        answer.append(lse)
    if wanted[2] is not None:
        answer.append(logits)
    if wanted[3]:
        answer.append(weights)
    if wanted[0]:
        answer.append(Stats(max_raw, max_logit, max_key, max_weight, entropy, key_weight))
    return tuple(answer)


def _is_int(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _ints(values: Any) -> list[int] | None:
    if values is None:
        return None
    return [values] if _is_int(values) else list(values)


def _indices(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        return values
    return torch.tensor(_integers(values), dtype=torch.int64)


def _integers(values: Any) -> list[Any]:
    """torch.tensor would cut 1.5 to 1 without a word."""
    integers = list(values)
    for value in integers:
        if not _is_int(value) and not hasattr(value, "__index__"):
            raise TypeError(f"expected ints or an int tensor, got {type(value).__name__}")
    return integers


def _lengths(values: Any, batch: int) -> Any:
    """The lengths as a tensor of one for each batch."""
    if values is None or isinstance(values, torch.Tensor):
        return values
    return torch.full((batch,), values, dtype=torch.int64) if _is_int(values) else _indices(values)


def _offsets(values: Any) -> tuple[Any, Any]:
    """One offset, or one for each batch."""
    if values is None or _is_int(values):
        return values, None
    return None, _indices(values)


def _seed(seed: Any, dropout: float) -> Any:
    if seed is None:
        return new_seed(dropout)
    if isinstance(seed, torch.Tensor):
        return seed
    if not _is_int(seed):
        raise TypeError(f"seed: expected an int or an int64 tensor, got {type(seed).__name__}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed: expected 0 to 2**64 - 1, got {seed}")
    # A tensor has 63 bits and a sign; the operator reads the 64 bits.
    return torch.tensor(seed - (seed >> 63 << 64), dtype=torch.int64)
