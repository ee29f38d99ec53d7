"""qkv.KVCache and qkv.PagedKVCache: keys and values of sequences that grow."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, Self, TypeAlias

from qkv import _core
from qkv._dtypes import dtype_name
from qkv._rope import Rope
from qkv._types import SupportsDLPack

__all__ = ["KVCache", "PagedKVCache"]

_Lengths: TypeAlias = int | Iterable[int] | SupportsDLPack
_Positions: TypeAlias = Literal["absolute", "cache"]


def _dtype_names(dtype: Any) -> tuple[str, str]:
    """One dtype for keys and values, or one for each."""
    if isinstance(dtype, tuple):
        if len(dtype) != 2:
            raise ValueError(f"dtype: expected one, or one for keys and one for values, got {len(dtype)}")
        return dtype_name(dtype[0]), dtype_name(dtype[1])
    return dtype_name(dtype), dtype_name(dtype)


def _shared(rope: _core.Rope | None) -> Rope | None:
    return None if rope is None else Rope._sharing(rope)


class KVCache(_core.KVCache):
    """Keys and values of a batch of sequences, each growing at its own pace: append, then attend.

    ``qkv.attention(q, cache, **options)`` gives the bits of attention over k and v of the same numbers, however they
    were appended: all at once, in chunks or token by token.

    Memory: ``batch * num_kv_heads * capacity * (head_dim * size + value_dim * size)`` bytes, and 4 bytes more for each
    of k and v that is int8; all of it is taken when the cache is made.

    Parameters
    ----------
    batch : int
        Sequences; `grow` adds more.
    num_kv_heads : int
        Heads of k and v, not of q: what grouped queries save.
    head_dim : int
        Columns of k.
    capacity : int
        Keys that a sequence can hold.
    value_dim : int, optional
        Columns of v; default head_dim.
    dtype : dtype, or a tuple of two, default "float32"
        float32, float64, float16, bfloat16 or int8, as a name, NumPy's or PyTorch's; two are for k and v. Numbers are
        rounded once, as they come in. int8 keeps a float32 scale for each token, head and tensor, ``max(abs(x)) /
        127`` without a floor; no number is off by more than 0.5001 times its scale. A token with a number that is no
        finite float32 is NaN as a whole.
    window : int, optional
        Makes the cache a ring: a row sees this many keys, its own among them, and the oldest make room. The capacity is
        at least ``num_sinks + window``; m slots more let m + 1 keys be appended between two calls of attention.
    num_sinks : int, default 0
        The first keys of a sequence that are never dropped and that no window hides (StreamingLLM's attention sinks).
    rope : qkv.position.Rope, optional
        Rotary positions: `append` turns key j of a sequence by position j, once for all, and attention a row of q by
        its own. Neither is turned by the caller. Its head_dim is that of the cache; "dynamic" scaling is refused.
    positions : {"absolute", "cache"}, default "absolute"
        "cache" (StreamingLLM): keys are kept as they come, and attention turns a row and the keys that it sees by their
        places in the cache once the row's window has left others behind: sinks first, then the window's. No position is
        ever beyond the cache. Needs a ``rope``, which may then have "dynamic" scaling; refuses ``alibi_slopes``. A step
        turns the keys of the window once; of several rows, each that has left keys behind turns its own.

    Raises
    ------
    ValueError, TypeError
        Sizes out of their range; a dtype that there is not.
    MemoryError
        No memory for that many keys.

    Notes
    -----
    A kept key stays at its absolute position (but for what a rope turns by, see ``positions``), and lengths count the
    keys that a ring has dropped. Threads may attend to one cache at once; what changes it waits for them.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> cache = qkv.KVCache(batch=1, num_kv_heads=2, head_dim=64, capacity=1024, dtype="bfloat16")
    >>> prompt = np.ones((1, 2, 10, 64), np.float32)
    >>> cache.append(prompt, prompt)
    >>> q = np.ones((1, 8, 10, 64), np.float32)
    >>> qkv.attention(q, cache, causal=True).shape
    (1, 8, 10, 64)
    >>> cache.lengths, cache.nbytes
    ((10,), 524288)
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        value_dim: int | None = None,
        dtype: Any = "float32",
        window: int | None = None,
        num_sinks: int = 0,
        rope: Rope | None = None,
        positions: _Positions = "absolute",
    ) -> None:
        sizes = (batch, num_kv_heads, head_dim, capacity, value_dim)
        super().__init__(sizes, *_dtype_names(dtype), (window, num_sinks), (rope, positions))

    @property
    def rope(self) -> Rope | None:
        """What turns keys and queries."""
        return _shared(super().rope)

    def append(self, k: SupportsDLPack, v: SupportsDLPack, lengths: _Lengths | None = None) -> None:
        """Adds keys and values to the end of every sequence: everything, or nothing.

        Parameters
        ----------
        k : array, shape [batch, num_kv_heads, n, head_dim]
            Any real dtype, any strides.
        v : array, shape [batch, num_kv_heads, n, value_dim]
            Of the same kind.
        lengths : int, or ints or int array of shape [batch], optional
            How many of the n tokens of each sequence are real; default all.

        Raises
        ------
        ValueError
            A sequence has no room: the text says how full it is. Nothing was appended.
        """
        super().append(k, v, lengths)

    def truncate(self, lengths: _Lengths) -> None:
        """Drops the last keys of each sequence, down to these lengths; an int is for all.

        Raises
        ------
        ValueError
            A length beyond the present one, or one whose window a ring has already overwritten.
        """
        super().truncate(lengths)

    def grow(self, batch: int) -> None:
        """Adds empty sequences, up to ``batch`` in all; those that are there keep their keys."""
        super().grow(batch)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes what the sequences hold to a safetensors file, which appears whole or not at all."""
        super().save(os.fsdecode(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """What `save` has written. ValueError for another file, OSError for one that cannot be read."""
        cache = cls.__new__(cls)
        _core.KVCache.__init__(cache, os.fsdecode(path))
        return cache

    def __repr__(self) -> str:
        ring = "" if self.window is None else f", window={self.window}"
        sinks = f", num_sinks={self.num_sinks}" if self.num_sinks else ""
        rope = "" if self.rope is None else f", rope={self.rope}"
        rope += "" if self.positions == "absolute" else f", positions={self.positions!r}"
        return (
            f"KVCache(batch={self.batch}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, "
            f"capacity={self.capacity}, value_dim={self.value_dim}, dtype={self.dtype}{ring}{sinks}{rope}; "
            f"lengths {list(self.lengths)}, {self.nbytes} bytes)"
        )


class PagedKVCache(_core.PagedKVCache):
    """The same in pages: sequences take pages as they grow, and share those of a common prefix.

    Pages go back when a sequence shrinks. A shared page is copied when one of its sequences writes to it.
    Memory: ``num_pages * num_kv_heads * page_size`` times what a key of `KVCache` takes.

    Parameters
    ----------
    batch, num_kv_heads, head_dim, value_dim, dtype, rope, positions
        As in `KVCache`; the window that "cache" goes by is the call's.
    num_pages : int
        Pages that all sequences share.
    page_size : int, default 64
        Keys a page; multiples of 16 are read fastest.

    Examples
    --------
    >>> import numpy as np
    >>> import qkv
    >>> cache = qkv.PagedKVCache(batch=1, num_kv_heads=2, head_dim=64, num_pages=8, page_size=16)
    >>> prompt = np.ones((1, 2, 40, 64), np.float32)
    >>> cache.append(prompt, prompt)
    >>> cache.grow(2)
    >>> cache.share(0, 1)
    >>> cache.lengths, cache.num_free_pages
    ((40, 40), 5)
    """

    def __init__(
        self,
        batch: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        *,
        page_size: int = 64,
        value_dim: int | None = None,
        dtype: Any = "float32",
        rope: Rope | None = None,
        positions: _Positions = "absolute",
    ) -> None:
        sizes = (batch, num_kv_heads, head_dim, num_pages, page_size, value_dim)
        super().__init__(sizes, *_dtype_names(dtype), (rope, positions))

    @property
    def rope(self) -> Rope | None:
        """What turns keys and queries."""
        return _shared(super().rope)

    def append(self, k: SupportsDLPack, v: SupportsDLPack, lengths: _Lengths | None = None) -> None:
        """As `KVCache.append`; where pages run out, the text says how many are needed, free and there."""
        super().append(k, v, lengths)

    def truncate(self, lengths: _Lengths) -> None:
        """Drops the last keys of each sequence, down to these lengths; 0 makes a sequence empty."""
        super().truncate(lengths)

    def grow(self, batch: int) -> None:
        """Adds empty sequences, up to ``batch`` in all."""
        super().grow(batch)

    def share(self, source: int, target: int, length: int | None = None) -> None:
        """Makes the empty sequence ``target`` begin with the first ``length`` keys of ``source``, by default all.

        Raises
        ------
        ValueError
            Unless both exist, the target is empty and the source has as many keys.
        """
        super().share(source, target, length)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the pages in use to a safetensors file, shared ones once."""
        super().save(os.fsdecode(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """What `save` has written. ValueError for another file, OSError for one that cannot be read."""
        cache = cls.__new__(cls)
        _core.PagedKVCache.__init__(cache, os.fsdecode(path))
        return cache

    def __repr__(self) -> str:
        rope = "" if self.rope is None else f", rope={self.rope}"
        rope += "" if self.positions == "absolute" else f", positions={self.positions!r}"
        return (
            f"PagedKVCache(batch={self.batch}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}, "
            f"num_pages={self.num_pages}, page_size={self.page_size}, value_dim={self.value_dim}, dtype={self.dtype}"
            f"{rope}; lengths {list(self.lengths)}, {self.num_free_pages} pages free, {self.nbytes} bytes)"
        )
