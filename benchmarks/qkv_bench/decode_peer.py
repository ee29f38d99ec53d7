"""PyTorch's scaled_dot_product_attention with one query row, over tensors that are visited in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkv_bench.cases import Array
from qkv_bench.decode_cases import DecodeCase
from qkv_bench.decode_operands import Operands
from qkv_bench.dtypes import INT8, TOLERANCES
from qkv_bench.runners import UnableError, import_peer
from qkv_bench.storage import relative_difference, torch_tensor


@dataclass
class Peer:
    """What decode needs of it."""

    call: Callable[[], Any]
    set_num_threads: Callable[[int], object]


def prepare(case: DecodeCase, operands: Operands, expected: Array, copies: int) -> Peer:
    """Raises UnableError where PyTorch is missing, has no such cache, or computes something else."""
    if case.dtype == INT8:
        raise UnableError("has no int8 cache")
    torch = import_peer("torch")
    q = torch_tensor(torch, operands.q)
    pairs = [tuple(torch_tensor(torch, array.copy()) for array in (operands.k, operands.v)) for _ in range(copies)]
    turn = itertools.cycle(pairs)
    options = {} if case.heads == case.kv_heads else {"enable_gqa": True}
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        with torch.no_grad():
            return attend(q, *next(turn), **options)

    difference = relative_difference(np.asarray(call().float()), expected)
    if not difference <= TOLERANCES[case.dtype]:
        raise UnableError(f"computes another thing: its result differs by {difference:.1e}")
    return Peer(call, torch.set_num_threads)
