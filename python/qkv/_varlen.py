"""qkv.attention_varlen: its signature and documentation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qkv import _core
from qkv._autograd import computed_by
from qkv._types import SupportsDLPack, Window

__all__ = ["attention_varlen"]


@computed_by(_core.attention_varlen)
def attention_varlen(
    q: SupportsDLPack,
    k: SupportsDLPack,
    v: SupportsDLPack,
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
    return_lse: bool = False,
    return_stats: bool = False,
    stats_keys: int | Iterable[int] | None = None,
    out: SupportsDLPack | None = None,
) -> Any:
    """Attention within each sequence of a ragged batch: unequal lengths, one after the other, no padding.

    As if `qkv.attention` were called for each segment, with the same bits; their heads are handed out to the threads
    together.

    Parameters
    ----------
    q : array, shape [total_q, num_heads, head_dim]
        The queries of all segments; kinds and dtypes as in `qkv.attention`, for every array.
    k : array, shape [total_kv, num_kv_heads, head_dim]
        Keys.
    v : array, shape [total_kv, num_kv_heads, value_dim]
        Values.
    cu_seqlens_q : int32 or int64 array, or ints, of shape [num_segments + 1]
        Cumulative lengths from 0 to total_q: segment s has the rows ``cu_seqlens_q[s]`` to ``cu_seqlens_q[s + 1] - 1``.
        A segment may be empty.
    cu_seqlens_k : int32 or int64 array, or ints, of shape [num_segments + 1]
        The same of k and v, from 0 to total_kv.
    causal, window, scale, softcap, dropout, seed
        Of every segment, as in `qkv.attention`; positions count from the segment's first key. Dropout takes the number
        of a segment for its batch.
    query_offset : int, or ints or int array of shape [num_segments], optional
        The position of a segment's first row. The default puts its last row at its last key.
    sinks, alibi_slopes : array, shape [num_heads] or [num_segments, num_heads], optional
        As in `qkv.attention`.
    return_lse, return_stats : bool, default False
        Also return lse, a `Stats`.
    stats_keys : int or ints, optional
        The keys whose weights `Stats.key_weight` sums, counted within each segment.
    out : array, shape of the result, optional
        Where to write.

    Returns
    -------
    out : array, shape [total_q, num_heads, value_dim]
        A row of a segment without keys is 0. Where anything else is asked for, a tuple in this order:
    lse : array, shape [num_heads, total_q], if return_lse
    stats : Stats of arrays of shape [num_heads, total_q], if return_stats

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError, MemoryError
        As `qkv.attention`. A mask, a bias, kv_lens, weights and logits are refused: rows of unequal length have no
        common shape for them, and the cumulative lengths say what is real.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> q = k = v = np.ones((5, 2, 8), np.float32)  # two sequences, of 2 and of 3
    >>> out, lse = qkv.attention_varlen(q, k, v, [0, 2, 5], [0, 2, 5], causal=True, return_lse=True)
    >>> out.shape, lse.shape
    ((5, 2, 8), (2, 5))
    """
