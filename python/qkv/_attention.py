"""qkv.attention: its signature and documentation; the types of its results are in _attention.pyi."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qkv import _core
from qkv._autograd import computed_by
from qkv._cache import KVCache, PagedKVCache
from qkv._types import LogitsStage, Select, SupportsDLPack, Window

__all__ = ["attention"]


@computed_by(_core.attention)
def attention(
    q: SupportsDLPack,
    k: SupportsDLPack | KVCache | PagedKVCache,
    v: SupportsDLPack | None = None,
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
    return_lse: bool = False,
    return_weights: bool | Select = False,
    return_logits: LogitsStage | None = None,
    return_stats: bool = False,
    stats_keys: int | Iterable[int] | None = None,
    out: SupportsDLPack | None = None,
) -> Any:
    """Scaled dot-product attention: ``softmax(masked(softcap(scale * q @ k.T) + bias)) @ v``, per batch and head.

    Exact, the same bits every time, and O(q_len + kv_len) memory with every option, unless weights or logits are asked
    for. Arrays are read where they lie, with any strides: nothing is copied.

    Parameters
    ----------
    q : array, shape [batch, num_heads, q_len, head_dim]
        Queries: float32, float64, float16 or bfloat16 (PyTorch's, or that of ml_dtypes). A NumPy array, a PyTorch
        tensor on the CPU, or an object with ``__dlpack__``; all arrays of a call are of one kind. Fewer axes are legal:
        the missing leading ones are 1.
    k : array, shape [batch, num_kv_heads, kv_len, head_dim]; or a `KVCache` or `PagedKVCache`, without v
        Keys: q's dtype, or float16 or bfloat16 beside a q of at most 32 bits. ``num_heads % num_kv_heads == 0``; query
        head h reads ``h // (num_heads // num_kv_heads)``.
    v : array, shape [batch, num_kv_heads, kv_len, value_dim]
        Values, as k, whatever k has; value_dim is free. A cache has its own: leave v and kv_lens out; kv_len is the
        longest of its lengths then.
    mask : bool array, optional
        True = attend. Broadcasts to [batch, num_heads, q_len, kv_len] by NumPy's rules.
    bias : array, optional
        Added to the logits: q's dtype, or float32 beside 16 bits. Broadcasts like mask. -inf hides the key; finfo.min
        is an ordinary number.
    causal : bool, default False
        The row at position p sees key j only if ``j <= p``.
    query_offset : int, or ints or int array of shape [batch], optional
        Row i of q is at position ``query_offset + i``, key j at j; may be negative, from ``-2**60`` to ``2**60``. The
        default puts the last row at the last key (of kv_lens, where given): bottom-right alignment. PyTorch's
        ``is_causal`` is 0.
    window : (left, right), optional
        The row at position p sees keys ``p - left <= j <= p + right``; None = no bound, and neither is below 0.
        ``(255, 0)`` is a causal window of 256 keys.
    scale : float, optional
        Multiplies ``q @ k.T``; default ``1 / sqrt(head_dim)``. Any finite number.
    softcap : float, default 0.0
        c > 0 turns each scaled logit x into ``c * tanh(x / c)``, before bias and masks.
    sinks : array, shape [num_heads] or [batch, num_heads], optional
        One extra logit a head that takes part in the sum and has no value; dtypes as bias.
    alibi_slopes : array, shape [num_heads] or [batch, num_heads], optional
        Adds ``-slope * abs(p - j)``; dtypes as bias.
    kv_lens : int, or ints or int array of shape [batch], optional
        Keys at kv_lens[b] and beyond are hidden; each in 0..kv_len. An int is for every batch.
    dropout : float, default 0.0
        Probability of a weight to become 0 before it meets v, from 0 to 1; the others are divided by ``1 - dropout``.
        lse, logits, weights and stats are those without it.
    seed : int, optional
        Of the dropout, from 0 to ``2**64 - 1``; needed where there is one. Which weights are dropped is a function of
        the seed, the batch, the query head, the row's position and the key: give each layer and step another seed.
    return_lse : bool, default False
        Also return lse.
    return_weights : bool or Select, default False
        Also return the softmax weights: all, or those of chosen heads and rows.
    return_logits : {"scaled", "capped", "masked"}, optional
        Also return the logits: of every key after the scale, of every key after softcap, or what softmax sees (-inf at
        hidden keys).
    return_stats : bool, default False
        Also return a `Stats`.
    stats_keys : int or ints, optional
        The keys whose weights `Stats.key_weight` sums, each in 0..kv_len-1.
    out : array, shape of the result, optional
        Where to write, q's dtype; any strides; shares no element with an input.

    Returns
    -------
    out : array, shape [batch, num_heads, q_len, value_dim]
        Of q's kind and dtype (NumPy for a DLPack object), or the `out` that was given. It and all other results have
        as many leading axes as q: q of [q_len, head_dim] gives out [q_len, value_dim], lse [q_len], weights
        [q_len, kv_len]. Beside a q of 16 bits they are float32. Where anything else is asked for, a tuple in this
        order:
    lse : array, shape [batch, num_heads, q_len], if return_lse
        Natural logarithm of the sum of exp of the logits, sinks included; -inf for a row that sees nothing.
    logits : array, shape [batch, num_heads, q_len, kv_len], if return_logits
    weights : array, shape [batch, heads, rows, kv_len], if return_weights
        Hidden keys have exactly 0.
    stats : Stats of arrays of shape [batch, num_heads, q_len], if return_stats

    Raises
    ------
    ShapeError
        A ValueError: shapes that do not fit together.
    DtypeError
        A TypeError: an element type that is not supported, or that does not agree.
    ValueError
        A number out of its range; an array that cannot be used as it is: read-only out, an out that overlaps an input,
        a tensor that has a tangent, or requires grad and has none (its derivative would be lost), is sparse, nested,
        inside a torch.func transform, without data or not on the CPU.
    TypeError
        An argument that is no array or number, or arrays of different kinds.
    MemoryError
        No memory for the results or the work.

    What an argument's own methods raise beyond that (``__index__``, ``__float__``, ``__iter__``) goes through; an
    exception in ``__dlpack__`` is the cause of a TypeError. KeyboardInterrupt and its like always go through.

    Notes
    -----
    16 bits are for storage: arithmetic is that of float32, and out is rounded once. Where q, k and v are all bfloat16,
    the weights are rounded to bfloat16 before they meet v, and divided by their sum.

    A key that a row may not see does not change one bit of the row, even if it holds NaN. A row that sees nothing gives
    0. A visible NaN makes its row NaN and no other row. A row's bits depend on its own query, its visible keys at their
    positions and the options: not on batch, threads, padding, or how queries are split into calls.

    Where PyTorch records gradients of q, k, v, bias or sinks, the call is one of `qkv.torch.attention`.

    The interpreter lock is released while it computes, unless q, k and v have at most 64 elements each; do not change
    the arrays meanwhile.

    References
    ----------
    Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> q = k = v = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    >>> qkv.attention(q, k, v, causal=True)[0, 0, 0].tolist()
    [0.0, 1.0, 2.0, 3.0]
    >>> out, lse = qkv.attention(q, k, v, return_lse=True)
    >>> lse.shape
    (1, 1, 2)
    """
