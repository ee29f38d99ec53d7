"""What the files about qkv.torch share."""

from __future__ import annotations

import types
import unittest
from typing import Any

import numpy as np
import pytest
from support import optional

import qkv

torch: Any = optional("torch")
if torch:
    import qkv.torch

#: Largest error in double beside PyTorch's autograd, relative to the largest entry: two orders of summation.
DOUBLE = 1e-11
#: The same in float32.
SINGLE = 2e-5


def library_drops() -> bool:
    """Whether the kernels have dropout; asked at collection, so that its tests run from the day on that they have."""
    one = np.ones((1, 1))
    try:
        qkv.attention(one, one, one, dropout=0.5, seed=1)
    except ValueError:
        return False
    return True


needs_dropout = pytest.mark.skipif(not library_drops(), reason="qkv.attention has no dropout yet")


def rows(*shape: int, seed: int = 0, dtype: Any = None, grad: bool = True) -> Any:
    """Random numbers, in double by default; they require grad."""
    generator = torch.Generator().manual_seed(1000 + seed)
    made = torch.randn(shape, generator=generator, dtype=torch.double).to(dtype or torch.double)
    return made.requires_grad_(grad)


def close(actual: Any, expected: Any, tolerance: float = DOUBLE) -> None:
    """Equal to the tolerance times the size of the expected, in other memory."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if not expected.numel():
        return
    assert actual.data_ptr() != expected.data_ptr()
    assert bool(actual.isfinite().all()) == bool(expected.isfinite().all())
    difference = (actual - expected).abs().max().item()
    limit = tolerance * max(1.0, expected.abs().max().item())
    assert difference <= limit, f"largest difference {difference:.3g}, allowed {limit:.3g}"


def gradients(outputs: Any, leaves: list[Any], seed: int = 99, again: bool = True) -> list[Any]:
    """Of random sums of the outputs; ``again``: the graph is used more than once."""
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    upstream = [rows(*out.shape, seed=seed + i, dtype=out.dtype, grad=False) for i, out in enumerate(outputs)]
    found = torch.autograd.grad(outputs, leaves, upstream, allow_unused=True, retain_graph=again)
    return [torch.zeros_like(leaf) if each is None else each for each, leaf in zip(found, leaves, strict=True)]


def same(ours: Any, theirs: Any, leaves: list[Any], tolerance: float = DOUBLE) -> None:
    """Both functions of no arguments give the same results and gradients."""
    actual, expected = ours(), theirs()
    close(actual, expected, tolerance)
    for one, other in zip(gradients(actual, leaves), gradients(expected, leaves), strict=True):
        close(one, other, tolerance)


def op_info(name: str) -> Any:
    """PyTorch's own description of a function, with its sample inputs."""
    import sys

    if "expecttest" not in sys.modules and optional("expecttest") is None:
        # PyTorch's tests derive from a class of that package; samples need no more of it.
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    [info] = [info for info in op_db if info.name == name]
    return info
