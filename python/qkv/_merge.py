"""qkv.merge_states: attention over a split set of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy.typing as npt

from qkv import _core
from qkv._types import Float, SupportsDLPack, Tensor

__all__ = ["merge_states"]


@overload
def merge_states(
    outs: Sequence[npt.NDArray[Float]], lses: Sequence[npt.NDArray[Float]], *, sinks: SupportsDLPack | None = ...
) -> tuple[npt.NDArray[Float], npt.NDArray[Float]]: ...
@overload
def merge_states(
    outs: Sequence[Tensor], lses: Sequence[Tensor], *, sinks: SupportsDLPack | None = ...
) -> tuple[Tensor, Tensor]: ...
@overload
def merge_states(
    outs: Sequence[SupportsDLPack], lses: Sequence[SupportsDLPack], *, sinks: SupportsDLPack | None = ...
) -> tuple[Any, Any]: ...
def merge_states(
    outs: Sequence[SupportsDLPack], lses: Sequence[SupportsDLPack], *, sinks: SupportsDLPack | None = None
) -> tuple[Any, Any]:
    """Joins attention over disjoint sets of keys into attention over their union.

    ``lse = ln(sum(exp(lses)))`` and ``out = sum(exp(lses - lse) * outs)``, merged left to right.

    Parameters
    ----------
    outs : list of arrays, each of shape [batch, num_heads, q_len, value_dim]
        Results of `qkv.attention` over parts of the keys; one dtype and one kind. Fewer axes are
        legal: the missing leading ones are 1.
    lses : list of arrays, each of shape [batch, num_heads, q_len]
        Their lse (natural logarithm), as ``return_lse=True`` gives it.
    sinks : array, shape [num_heads] or [batch, num_heads], optional
        Enter once, here: compute the parts without them.

    Returns
    -------
    out, lse : arrays
        Of the parts' kind, shapes and dtype. A row that is empty in every part stays empty: out 0, lse -inf.

    Raises
    ------
    ShapeError, DtypeError, ValueError
        Parts that do not fit together, or none at all.
    TypeError
        Arguments that are not lists of arrays, or arrays of different kinds.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 8, 4))
    >>> parts = [qkv.attention(q, k[s], v[s], return_lse=True) for s in (slice(0, 5), slice(5, 8))]
    >>> out, lse = qkv.merge_states([p[0] for p in parts], [p[1] for p in parts])
    >>> bool(np.allclose(out, qkv.attention(q, k, v)))
    True
    """
    return _core.merge_states(outs, lses, sinks)
