"""The two ways in which articles write attention in PyTorch, anew, as an oracle.

One divides by sqrt(d_k), hides where ``mask == 0`` and returns the weights too; the other is a module with W_q, W_k,
W_v and W_o around it. Rows in which every key is hidden are left out there: softmax of nothing but -inf is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import optional

import qkv

torch: Any = optional("torch")
pytestmark = pytest.mark.needs("torch")

# Both sides compute in float32, each with its own rounding.
TOLERANCE = 2e-6


def attend_as_written(
    query: Any, key: Any, value: Any, mask: Any = None, hidden: float = float("-inf")
) -> tuple[Any, Any]:
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, hidden)
    weights = scores.softmax(dim=-1)
    return weights @ value, weights


class MultiHead:
    """Four projections, split into heads, attend, join."""

    def __init__(self, d_model: int, num_heads: int, generator: Any) -> None:
        self.num_heads = num_heads
        bound = d_model**-0.5

        def parameter(*shape: int) -> Any:
            return (torch.rand(*shape, generator=generator) * 2 - 1) * bound

        self.projections = {name: (parameter(d_model, d_model), parameter(d_model)) for name in ("q", "k", "v", "o")}

    def _project(self, name: str, x: Any) -> Any:
        weight, bias = self.projections[name]
        return torch.nn.functional.linear(x, weight, bias)

    def _split(self, x: Any) -> Any:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def __call__(self, query: Any, key: Any, value: Any, attend: Any) -> Any:
        heads = [self._split(self._project(name, x)) for name, x in (("q", query), ("k", key), ("v", value))]
        context = attend(*heads)
        return self._project("o", context.transpose(1, 2).reshape(query.shape))


def generator_of(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("hidden", [float("-inf"), -1e9])
@pytest.mark.parametrize("mask_kind", [None, "padding", "causal", "both"])
def test_function(mask_kind: str | None, hidden: float, seed: int, target: str) -> None:
    generator = generator_of(seed)
    q, k, v = (torch.randn(3, 4, 17, 32, generator=generator) for _ in range(3))
    padding = torch.from_numpy(qkv.masks.padding([17, 1, 9], 17))
    causal = torch.from_numpy(qkv.masks.causal(17, 17))
    mask = {None: None, "padding": padding, "causal": causal, "both": padding & causal}[mask_kind]
    expected_out, expected_weights = attend_as_written(q, k, v, None if mask is None else mask.int(), hidden)
    out, weights = qkv.attention(q, k, v, mask=mask, return_weights=True)
    torch.testing.assert_close(out, expected_out, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 17), rtol=0, atol=TOLERANCE)


def test_three_axes_without_heads(target: str) -> None:
    q, k, v = (torch.randn(2, 12, 16, generator=generator_of(7)) for _ in range(3))
    expected_out, expected_weights = attend_as_written(q, k, v)
    out, weights = qkv.attention(q, k, v, return_weights=True)
    torch.testing.assert_close(out, expected_out, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=TOLERANCE)


def test_masks_are_those_of_the_articles() -> None:
    padding = torch.zeros(2, 1, 1, 5)
    padding[0, ..., :2] = 1
    padding[1, ..., :4] = 1
    np.testing.assert_array_equal(qkv.masks.padding([2, 4], 5), padding.numpy() == 1)
    np.testing.assert_array_equal(qkv.masks.causal(5, 5), torch.ones(5, 5).tril().numpy() == 1)


@pytest.mark.parametrize("causal", [False, True])
def test_module(causal: bool, target: str) -> None:
    generator = generator_of(42)
    x = torch.randn(2, 32, 512, generator=generator)
    module = MultiHead(512, 8, generator)
    mask = torch.ones(32, 32).tril() if causal else None
    expected = module(x, x, x, lambda q, k, v: attend_as_written(q, k, v, mask, -1e9)[0])
    y = module(x, x, x, lambda q, k, v: qkv.attention(q, k, v, causal=causal))
    assert y.shape == x.shape
    assert torch.isfinite(y).all()
    torch.testing.assert_close(y, expected, rtol=0, atol=TOLERANCE)


def test_padded_module_ignores_what_is_in_the_padding(target: str) -> None:
    generator = generator_of(1)
    x = torch.randn(2, 10, 64, generator=generator)
    module = MultiHead(64, 4, generator)
    lengths = [10, 6]
    mask = torch.from_numpy(qkv.masks.padding(lengths, 10))
    expected = module(x, x, x, lambda q, k, v: attend_as_written(q, k, v, mask.int())[0])
    x[1, 6:] = float("nan")
    y = module(x, x, x, lambda q, k, v: qkv.attention(q, k, v, kv_lens=lengths))
    torch.testing.assert_close(y[0], expected[0], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(y[1, :6], expected[1, :6], rtol=0, atol=TOLERANCE)


def test_unscaled_logits_saturate_and_scaled_ones_do_not(target: str) -> None:
    generator = generator_of(5)
    q, k, v = (torch.randn(1, 1, 64, 512, generator=generator) for _ in range(3))
    _, unscaled = qkv.attention(q, k, v, scale=1.0, return_weights=True)
    _, scaled = qkv.attention(q, k, v, return_weights=True)
    assert torch.isfinite(unscaled).all()
    assert unscaled.amax(-1).mean() > 0.9
    assert scaled.amax(-1).mean() < 0.3
