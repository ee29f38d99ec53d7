"""Masks as arrays, for code that wants them: bool, True = attend.

`qkv.attention` says the same without the memory by ``kv_lens=`` and ``causal=``. As a tensor: ``torch.from_numpy``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from qkv import _core

__all__ = ["causal", "padding"]


def padding(lengths: Iterable[int], n: int) -> npt.NDArray[np.bool_]:
    """The padding mask of sequences that were filled up to one length.

    Parameters
    ----------
    lengths : ints or int array, shape [batch]
        Real positions of each sequence, in 0..n.
    n : int
        Positions after padding: kv_len.

    Returns
    -------
    bool array, shape [batch, 1, 1, n]
        True where ``j < lengths[b]``.

    Raises
    ------
    ValueError
        A length that is not in 0..n, a negative n, or more elements than 63 bits can count.
    TypeError
        Anything but ints; lengths without an order, such as a set.
    MemoryError
        No memory for the mask.

    Examples
    --------
    >>> import qkv
    >>> qkv.masks.padding([1, 3], 3)[:, 0, 0].tolist()
    [[True, False, False], [True, True, True]]
    """
    return _core.padding_mask(lengths, n)


def causal(q_len: int, kv_len: int, query_offset: int | None = None) -> npt.NDArray[np.bool_]:
    """The causal mask: row i, at position ``query_offset + i``, sees the keys up to its own position.

    Parameters
    ----------
    q_len, kv_len : int
        Rows and keys.
    query_offset : int, optional
        Position of row 0; default ``kv_len - q_len``, which puts the last row at the last key, as in `qkv.attention`.

    Returns
    -------
    bool array, shape [q_len, kv_len]
        True where ``j <= query_offset + i``.

    Raises
    ------
    ValueError
        A negative length, or more elements than 63 bits can count.
    TypeError
        Anything but ints.
    MemoryError
        No memory for the mask.

    Examples
    --------
    >>> import qkv
    >>> qkv.masks.causal(2, 3).tolist()
    [[True, True, False], [True, True, True]]
    """
    return _core.causal_mask(q_len, kv_len, query_offset)
