"""Positions: sinusoids, learned tables, rotations (RoPE), slopes of ALiBi, buckets of T5.

Attention itself does not know the order of keys. What adds to the input (`sinusoidal`, `learned`), turns queries and
keys (`Rope`) or adds to the logits (`alibi_slopes`, `t5_bias`) tells it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from qkv import _core
from qkv._dtypes import dtype_name, is_torch_dtype
from qkv._rope import Rope
from qkv._types import Float, SupportsDLPack, Tensor

__all__ = ["Rope", "alibi_slopes", "learned", "sinusoidal", "t5_bias", "t5_bucket"]


def sinusoidal(n: int, dim: int, *, first: int = 0, base: float = 10000.0, dtype: Any = "float32") -> Any:
    """The table of the transformer's article: sines in the even columns, cosines in the odd ones.

    ``table[i, 2j] = sin(p * base ** (-2j / dim))`` and ``table[i, 2j + 1]`` its cosine, with ``p = first + i``. The
    last column of an odd dim is a sine without its cosine.

    Parameters
    ----------
    n : int
        Rows.
    dim : int
        Columns.
    first : int, default 0
        Position of row 0; any number from ``-2**53``.
    base : float, default 10000
        The longest wave is ``2 * pi * base`` positions long; above 1.
    dtype : dtype, default "float32"
        float32, float64, float16 or bfloat16, as a name, NumPy's or PyTorch's.

    Returns
    -------
    array, shape [n, dim]
        A tensor for a dtype of PyTorch's, else a NumPy array. Angles are float64, rounded once.

    Raises
    ------
    ValueError, DtypeError, TypeError
        Numbers out of their range, another dtype.

    Examples
    --------
    >>> import qkv
    >>> qkv.position.sinusoidal(2, 4).round(3).tolist()[0]
    [0.0, 1.0, 0.0, 1.0]
    """
    return _core.sinusoidal(n, dim, first, base, (dtype_name(dtype), is_torch_dtype(dtype)))


@overload
def learned(table: npt.NDArray[Float], ids: Iterable[int] | SupportsDLPack) -> npt.NDArray[Float]: ...
@overload
def learned(table: Tensor, ids: Iterable[int] | SupportsDLPack) -> Tensor: ...
@overload
def learned(table: SupportsDLPack, ids: Iterable[int] | SupportsDLPack) -> Any: ...
def learned(table: SupportsDLPack, ids: Iterable[int] | SupportsDLPack) -> Any:
    """Rows of a learned table, bit for bit; a position that it does not have is an error.

    Parameters
    ----------
    table : array, shape [size, dim]
        float32, float64, float16 or bfloat16.
    ids : int array of shape [n] or [batch, n], or ints
        Positions, each from 0 to ``size - 1``.

    Returns
    -------
    array, shape [n, dim] or [batch, n, dim]
        Of the table's kind and dtype.

    Raises
    ------
    ValueError
        An id below 0 or beyond the table: the text has both numbers.
    ShapeError, DtypeError, TypeError
        Arguments that do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> table = np.arange(6.0).reshape(3, 2)
    >>> qkv.position.learned(table, [2, 0]).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    return _core.learned(table, ids)


def alibi_slopes(num_heads: int, *, dtype: Any = "float32") -> Any:
    """Slopes of ALiBi for any number of heads: what `qkv.attention` takes as ``alibi_slopes``.

    For a power of two ``2 ** (-8 * (h + 1) / num_heads)``. Otherwise those of the largest power of two below, and for
    the other heads every second slope of twice that many.

    Parameters
    ----------
    num_heads : int
        At least 1.
    dtype : dtype, default "float32"
        As in `sinusoidal`. Attention wants q's, or float32 beside 16 bits.

    Returns
    -------
    array, shape [num_heads]

    Raises
    ------
    ValueError, DtypeError, TypeError

    Examples
    --------
    >>> import qkv
    >>> qkv.position.alibi_slopes(3).tolist()
    [0.0625, 0.00390625, 0.25]
    """
    return _core.alibi_slopes(num_heads, (dtype_name(dtype), is_torch_dtype(dtype)))


@overload
def t5_bucket(relative: int, *, bidirectional: bool = ..., num_buckets: int = ..., max_distance: int = ...) -> int: ...
@overload
def t5_bucket(
    relative: npt.NDArray[np.signedinteger[Any]],
    *,
    bidirectional: bool = ...,
    num_buckets: int = ...,
    max_distance: int = ...,
) -> npt.NDArray[np.int64]: ...
@overload
def t5_bucket(
    relative: SupportsDLPack, *, bidirectional: bool = ..., num_buckets: int = ..., max_distance: int = ...
) -> Any: ...
def t5_bucket(
    relative: int | SupportsDLPack, *, bidirectional: bool = True, num_buckets: int = 32, max_distance: int = 128
) -> Any:
    """The bucket of T5 for each distance: position of the key less position of the row.

    Distances below half of a side's buckets have their own; larger ones share them by logarithm, in float32 as the
    models were trained.

    Parameters
    ----------
    relative : int, or int32 or int64 array of any shape
        Distances.
    bidirectional : bool, default True
        Half of the buckets are for keys after the row. False: such keys are in bucket 0.
    num_buckets : int, default 32
        At least 4, or 2 if not bidirectional.
    max_distance : int, default 128
        From here on all distances share a bucket.

    Returns
    -------
    int, or int64 array of the same kind and shape

    Raises
    ------
    ValueError, DtypeError, TypeError

    Examples
    --------
    >>> import qkv
    >>> [qkv.position.t5_bucket(d) for d in (-1000, -3, 0, 3, 1000)]
    [15, 3, 0, 19, 31]
    """
    return _core.t5_bucket(relative, bidirectional, num_buckets, max_distance)


@overload
def t5_bias(
    table: npt.NDArray[Float],
    q_len: int,
    kv_len: int,
    *,
    bidirectional: bool = ...,
    max_distance: int = ...,
    query_offset: int = ...,
) -> npt.NDArray[Float]: ...
@overload
def t5_bias(
    table: Tensor,
    q_len: int,
    kv_len: int,
    *,
    bidirectional: bool = ...,
    max_distance: int = ...,
    query_offset: int = ...,
) -> Tensor: ...
@overload
def t5_bias(
    table: SupportsDLPack,
    q_len: int,
    kv_len: int,
    *,
    bidirectional: bool = ...,
    max_distance: int = ...,
    query_offset: int = ...,
) -> Any: ...
def t5_bias(
    table: SupportsDLPack,
    q_len: int,
    kv_len: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    query_offset: int = 0,
) -> Any:
    """The bias of T5 from its learned table: ``out[h, i, j] = table[t5_bucket(j - (query_offset + i)), h]``.

    `qkv.attention` takes it as ``bias``; T5's logits have ``scale=1``.

    Parameters
    ----------
    table : array, shape [num_buckets, num_heads]
        float32, float64, float16 or bfloat16: ``relative_attention_bias.weight``.
    q_len, kv_len : int
        Rows and keys.
    bidirectional, max_distance
        As in `t5_bucket`.
    query_offset : int, default 0
        Position of row 0; key j is at j.

    Returns
    -------
    array, shape [num_heads, q_len, kv_len]
        Of the table's kind and dtype.

    Raises
    ------
    ShapeError, DtypeError, ValueError, TypeError

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> table = np.arange(32.0, dtype=np.float32).reshape(32, 1)
    >>> qkv.position.t5_bias(table, 2, 3)[0].tolist()
    [[0.0, 17.0, 18.0], [1.0, 0.0, 17.0]]
    """
    return _core.t5_bias(table, q_len, kv_len, bidirectional, max_distance, query_offset)
