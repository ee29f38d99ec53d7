"""The structures that go into and come out of attention."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

import numpy as np

from qkv import _core

__all__ = [
    "AttentionOptions",
    "BackwardOptions",
    "Float",
    "Gradients",
    "LogitsStage",
    "Need",
    "Select",
    "Stats",
    "SupportsDLPack",
    "Tensor",
    "Window",
]


class TorchTensor(Protocol):
    """What tells a PyTorch tensor from a NumPy array, for type checkers that need not know PyTorch."""

    requires_grad: bool

    def detach(self) -> Any:
        """As torch.Tensor has it."""


#: The element type of NumPy arrays, and the type of PyTorch tensors: of a call's inputs and of its results.
Float = TypeVar("Float", np.float32, np.float64)
Tensor = TypeVar("Tensor", bound=TorchTensor)
_A = TypeVar("_A")

LogitsStage: TypeAlias = Literal["scaled", "capped", "masked"]
Window: TypeAlias = tuple[int | None, int | None]
#: What a gradient can be of.
Need: TypeAlias = Literal["q", "k", "v", "bias", "sinks"]

#: An array argument: a NumPy array, a PyTorch tensor, or another object with ``__dlpack__``.
SupportsDLPack: TypeAlias = Any


class Stats(NamedTuple, Generic[_A]):
    """One number a row, from the pass that computes the result; each ``[batch, num_heads, q_len]``.

    Sinks are not keys. A row that sees nothing has -inf, -inf, -1, 0, 0, 0.
    """

    max_raw: _A
    """Largest ``scale * q @ k.T`` among the visible keys."""
    max_logit: _A
    """Largest logit among the visible keys, after softcap and bias."""
    max_key: Any
    """The key of ``max_logit``, int64; the lowest, where several share it."""
    max_weight: _A
    """Largest weight."""
    entropy: _A
    """``-sum(w * ln(w))`` over the keys, in nats."""
    key_weight: _A
    """Sum of the weights of ``stats_keys``; 0 where none are given."""


class Gradients(NamedTuple, Generic[_A]):
    """Gradients of a loss, each of the shape and dtype of its argument; None where ``need`` does not name it."""

    # What is None is known at run time alone; a type checker takes each member for what was needed.
    q: _A | Any
    """Of the queries."""
    k: _A | Any
    """Of the keys."""
    v: _A | Any
    """Of the values."""
    bias: _A | Any
    """Of the bias, summed over the axes in which it repeats."""
    sinks: _A | Any
    """Of the sinks, summed over the batch where they have none."""


@dataclass(frozen=True, init=False)
class Select:
    """Which attention weights to return: ``return_weights=Select(heads=[0], rows=[-1 + q_len])``.

    Parameters
    ----------
    heads
        Query heads, in the order wanted: ints in 0..num_heads-1. None = all.
    rows
        Rows of q, in the order wanted: ints in 0..q_len-1. None = all.

    Raises
    ------
    TypeError
        If one of them is neither None nor ints in an order: a set, a dict and bools are refused.
    ValueError
        An int that does not fit 64 bits.
    """

    heads: tuple[int, ...] | None
    rows: tuple[int, ...] | None

    def __init__(self, heads: Iterable[int] | None = None, rows: Iterable[int] | None = None) -> None:
        object.__setattr__(self, "heads", None if heads is None else _core.ints("Select.heads", heads))
        object.__setattr__(self, "rows", None if rows is None else _core.ints("Select.rows", rows))


class AttentionOptions(TypedDict, total=False):
    """The options of `qkv.attention` that do not change what it returns; that function documents them."""

    mask: SupportsDLPack | None
    bias: SupportsDLPack | None
    causal: bool
    query_offset: int | Iterable[int] | SupportsDLPack | None
    window: Window | None
    scale: float | None
    softcap: float
    sinks: SupportsDLPack | None
    alibi_slopes: SupportsDLPack | None
    kv_lens: int | Iterable[int] | SupportsDLPack | None
    dropout: float
    seed: int | None
    stats_keys: int | Iterable[int] | None
    out: SupportsDLPack | None


class BackwardOptions(TypedDict, total=False):
    """The options of `qkv.attention_backward`; that function documents them."""

    grad_lse: SupportsDLPack | None
    grad_entropy: SupportsDLPack | None
    need: Collection[Need]
    mask: SupportsDLPack | None
    bias: SupportsDLPack | None
    causal: bool
    query_offset: int | Iterable[int] | SupportsDLPack | None
    window: Window | None
    scale: float | None
    softcap: float
    sinks: SupportsDLPack | None
    alibi_slopes: SupportsDLPack | None
    kv_lens: int | Iterable[int] | SupportsDLPack | None
    dropout: float
    seed: int | None
