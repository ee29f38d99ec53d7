"""PyTorch's own sample inputs of the two functions, from its test suite; those that do not apply are counted."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from support import optional
from torch_support import DOUBLE, SINGLE, close, gradients, library_drops, op_info

import qkv

torch: Any = optional("torch")
if torch:
    import qkv.torch

# Another version has other samples.
pytestmark = [pytest.mark.needs("torch", "2.13.0"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SDPA = "nn.functional.scaled_dot_product_attention"
MHA = "nn.functional.multi_head_attention_forward"
DROPS = library_drops()


def tolerance(dtype: Any) -> float:
    return DOUBLE if dtype == torch.float64 else 4 * SINGLE


def agree(ours: Any, theirs: Any, sample: Any, leaves: list[Any], limit: float) -> None:
    one = ours(sample.input, *sample.args, **sample.kwargs)
    two = theirs(sample.input, *sample.args, **sample.kwargs)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (one, two)), strict=True):
        assert (a is None) == (b is None)
        if a is None:
            continue
        close(a, b, limit)
        if leaves:
            for g, h in zip(gradients(a, leaves), gradients(b, leaves), strict=True):
                close(g, h, limit)


def check_dropout(function: Any, sample: Any) -> None:
    """Other random numbers than PyTorch's, from the same generator: as many are dropped, and a seed repeats them."""
    results = []
    for _ in range(2):
        torch.manual_seed(4)
        results.append(function(sample.input, *sample.args, **sample.kwargs))
    assert torch.equal(*results)
    assert results[0].isfinite().all()


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["float64", "float32"])
def test_scaled_dot_product_attention(name: str, recorded: bool) -> None:
    dtype = getattr(torch, name)
    counts: Counter[str] = Counter()
    for sample in op_info(SDPA).sample_inputs("cpu", dtype, requires_grad=recorded):
        if sample.kwargs["dropout_p"] > 0:
            # Its random numbers are not PyTorch's; what can be compared is compared without them.
            counts["dropout, compared without"] += 1
            if DROPS:
                check_dropout(qkv.torch.scaled_dot_product_attention, sample)
            sample = copy.copy(sample)
            sample.kwargs = sample.kwargs | {"dropout_p": 0.0}
        else:
            counts["compared"] += 1
        leaves = [
            x for x in (sample.input, *sample.args, *sample.kwargs.values()) if getattr(x, "requires_grad", False)
        ]
        assert bool(leaves) == recorded
        agree(
            qkv.torch.scaled_dot_product_attention,
            torch.nn.functional.scaled_dot_product_attention,
            sample,
            leaves,
            tolerance(dtype),
        )
    assert counts == {"compared": 13, "dropout, compared without": 12}
    assert counts.total() == 25


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("name", ["float64", "float32"])
def test_multi_head_attention_forward(name: str, patched: bool) -> None:
    """Our function of that name; and PyTorch's, with its inner function replaced."""
    dtype = getattr(torch, name)
    theirs = torch.nn.functional.multi_head_attention_forward

    def within(*args: Any, **options: Any) -> Any:
        with qkv.torch.patch():
            return theirs(*args, **options)

    ours = within if patched else qkv.torch.multi_head_attention_forward
    counts: Counter[str] = Counter()
    samples = list(op_info(MHA).sample_inputs("cpu", dtype, requires_grad=False))
    with torch.no_grad():
        for sample in samples:
            dropped = sample.kwargs["training"]
            counts["dropout" if dropped else "compared"] += 1
            for weights in (True, False):
                given = copy.copy(sample)
                given.kwargs = sample.kwargs | {"need_weights": weights}
                if dropped and weights:
                    # The matrix is made, and PyTorch's own dropout draws for it: the very same numbers.
                    results = []
                    for function in (ours, theirs):
                        torch.manual_seed(4)
                        results.append(function(given.input, *given.args, **given.kwargs))
                    for a, b in zip(*results, strict=True):
                        close(a, b, tolerance(dtype))
                    continue
                if dropped:
                    if DROPS:
                        check_dropout(lambda *a, **o: ours(*a, **o)[0], given)
                    given.kwargs |= {"training": False}
                agree(ours, theirs, given, [], tolerance(dtype))
    assert counts == {"compared": 96, "dropout": 96}
    assert len(samples) == 192


@pytest.mark.parametrize("patched", [False, True])
def test_multi_head_attention_forward_with_gradients(patched: bool) -> None:
    theirs = torch.nn.functional.multi_head_attention_forward
    samples = list(op_info(MHA).sample_inputs("cpu", torch.float64, requires_grad=True))
    assert len(samples) == 1  # and it has dropout

    def within(*args: Any, **options: Any) -> Any:
        with qkv.torch.patch():
            return theirs(*args, **options)

    for sample in samples:
        sample.kwargs |= {"training": False}
        values = (sample.input, *sample.args, *sample.kwargs.values())
        leaves = [x for x in values if getattr(x, "requires_grad", False)]
        assert len(leaves) == 10
        for weights in (True, False):
            sample.kwargs["need_weights"] = weights
            agree(within if patched else qkv.torch.multi_head_attention_forward, theirs, sample, leaves, DOUBLE)
