"""Gradients against PyTorch's autograd in double, finite differences of the forward pass, and laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from option_cases import OPTIONS, B, D, H, N, S, filled
from support import REAL, assert_close, assert_same_bits, optional, stored, strided

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")

ALL = ("q", "k", "v", "bias", "sinks")
#: Largest allowed error in units of eps * size of the terms, of sums over rows; three times the largest seen.
COEFFICIENT = 64
#: The same with 16 bits: saved outputs and gradients that were rounded.
HALF_COEFFICIENT = 4


def inputs(rng: np.random.Generator, kv_heads: int = 2, value_dim: int = 6) -> list[np.ndarray]:
    shapes = ((B, H, N, D), (B, kv_heads, S, D), (B, kv_heads, S, value_dim))
    return [rng.standard_normal(shape) for shape in shapes]


def needed(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in ALL if name in "qkv" or options.get(name) is not None)


def forward(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
    return qkv.attention(q, k, v, return_lse=True, **options)


def differentiate(grad_out: Any, q: Any, k: Any, v: Any, *, function: Any = None, **options: Any) -> Any:
    """Every gradient that there is, of a forward call with these arguments."""
    own = ("grad_lse", "grad_entropy", "need")
    out, lse = forward(q, k, v, **{name: value for name, value in options.items() if name not in own})
    options.setdefault("need", needed(options))
    return (function or qkv.attention_backward)(grad_out, q, k, v, out, lse, **options)


def by_autograd(arrays: list[Any], upstream: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    """The same by PyTorch in double; upstream is what reaches out, lse and entropy."""
    leaves = dict(zip("qkv", arrays, strict=True)) | {n: options[n] for n in needed(options)[3:]}
    leaves = {name: torch.tensor(np.asarray(array, np.float64), requires_grad=True) for name, array in leaves.items()}
    rest = {name: value for name, value in options.items() if name not in leaves}
    result = oracle.attention(**leaves, **rest)
    parts = (result.out, torch.where(result.lse.isfinite(), result.lse, 0.0), result.stats["entropy"])
    factors = [torch.tensor(np.asarray(array, np.float64)) for array in upstream]
    loss = sum((part * factor).sum() for part, factor in zip(parts, factors, strict=True))
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {name: gradient.numpy() for name, gradient in zip(leaves, gradients, strict=True)}


def assert_gradients(actual: Any, expected: dict[str, Any], coefficient: float = COEFFICIENT) -> None:
    for name, gradient in expected.items():
        size = float(np.abs(gradient).max(initial=1.0))
        assert_close(getattr(actual, name), gradient, size=size, coefficient=coefficient)


@needs_torch
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OPTIONS)
def test_option(name: str, dtype: Any, kv_heads: int, target: str, rng: np.random.Generator) -> None:
    arrays = [array.astype(dtype) for array in inputs(rng, kv_heads)]
    options = filled(OPTIONS[name], dtype, rng)
    upstream = [rng.standard_normal(shape).astype(dtype) for shape in ((B, H, N, 6), (B, H, N), (B, H, N))]
    actual = differentiate(upstream[0], *arrays, grad_lse=upstream[1], grad_entropy=upstream[2], **options)
    assert_gradients(actual, by_autograd(arrays, upstream, options))
    zero = np.zeros((B, H, N), dtype)
    alone = differentiate(upstream[0], *arrays, **options)
    assert_gradients(alone, by_autograd(arrays, [upstream[0], zero, zero], options))
    for gradient, argument in zip(alone, [*arrays, options.get("bias"), options.get("sinks")], strict=True):
        assert (gradient is None) == (argument is None)
        assert gradient is None or (gradient.shape, gradient.dtype) == (argument.shape, dtype)


@needs_torch
@pytest.mark.parametrize("name", ["plain", "is_causal", "mask", "bias"])
def test_scaled_dot_product_attention(name: str, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    grad_out = rng.standard_normal((B, H, N, 6))
    mask = rng.random((B, 1, N, S)) < 0.7
    mask[..., 0] = True
    options: dict[str, Any] = {
        "plain": ({}, {}),
        "is_causal": ({"causal": True, "query_offset": 0}, {"is_causal": True}),
        "mask": ({"mask": mask}, {"attn_mask": torch.tensor(mask)}),
        "bias": ({"bias": np.where(mask, 0.5, -1.5)}, {"attn_mask": torch.tensor(np.where(mask, 0.5, -1.5))}),
    }[name]
    leaves = [torch.tensor(array, requires_grad=True) for array in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, enable_gqa=True, **options[1])
    expected = torch.autograd.grad(out, leaves, torch.tensor(grad_out))
    actual = differentiate(grad_out, q, k, v, **options[0])
    assert_gradients(actual, {n: gradient.numpy() for n, gradient in zip("qkv", expected, strict=True)})


@pytest.mark.parametrize("dropout", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("value_dim", [1, 6, 20])
@pytest.mark.parametrize("name", ["plain", "softcap", "window_self", "alibi", "bias_keys", "bias_hides", "lens", "all"])
def test_finite_differences(name: str, value_dim: int, dropout: float, rng: np.random.Generator) -> None:
    """Of qkv.attention in double along random directions: nothing but the forward pass is believed."""
    arrays = dict(zip("qkv", inputs(rng, value_dim=value_dim), strict=True))
    options = filled(OPTIONS[name], np.float64, rng) | {"dropout": dropout, "seed": 5}
    grad_out = rng.standard_normal((B, H, N, value_dim))
    gradients = differentiate(grad_out, *arrays.values(), **options)
    arguments = arrays | options

    def loss(name: str, array: np.ndarray) -> float:
        changed = arguments | {name: array}
        return float((qkv.attention(changed.pop("q"), changed.pop("k"), changed.pop("v"), **changed) * grad_out).sum())

    for which in needed(options):
        argument = arguments[which]
        for _ in range(3):
            direction = 1e-3 * rng.standard_normal(argument.shape)
            one, two = (
                loss(which, argument + step * direction) - loss(which, argument - step * direction) for step in (1, 2)
            )
            slope = (8 * one - two) / 12  # of fourth order
            np.testing.assert_allclose((getattr(gradients, which) * direction).sum(), slope, rtol=1e-7, atol=1e-10)


@needs_torch
def test_gradcheck(rng: np.random.Generator) -> None:
    """As a function of PyTorch's autograd, whose own check it passes."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            out, lse = forward(q, k, v, causal=True, softcap=3.0)
            ctx.save_for_backward(q, k, v, out, lse)
            return out, lse

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> Any:
            return qkv.attention_backward(grad_out, *ctx.saved_tensors, causal=True, softcap=3.0, grad_lse=grad_lse)[:3]

    leaves = [torch.tensor(array[:1, :, :4], requires_grad=True) for array in inputs(rng)]
    assert torch.autograd.gradcheck(Attention.apply, leaves)


@pytest.mark.parametrize("dtype", REAL)
def test_dtypes(dtype: str, target: str, rng: np.random.Generator) -> None:
    q, k, v = (stored(array, dtype) for array in inputs(rng))
    bias, sinks = (stored(rng.standard_normal(shape), dtype) for shape in ((H, 1, S), (H,)))
    grad_out = stored(rng.standard_normal((B, H, N, 6)), dtype)
    actual = differentiate(grad_out, q, k, v, causal=True, bias=bias, sinks=sinks)
    wide = [array.astype(np.float64) for array in (grad_out, q, k, v)]
    options = {"bias": bias.astype(np.float64), "sinks": sinks.astype(np.float64)}
    expected = differentiate(*wide, causal=True, function=qkv.reference.attention_backward, **options)
    half = q.dtype.itemsize == 2
    for gradient, exact in zip(actual, expected, strict=True):
        assert gradient.dtype == q.dtype
        eps = 2.0 ** {"float16": -10, "bfloat16": -7}[dtype] if half else np.finfo(q.dtype).eps
        tolerance = (HALF_COEFFICIENT if half else COEFFICIENT) * eps * max(1.0, np.abs(exact).max())
        np.testing.assert_allclose(gradient.astype(np.float64), exact, rtol=0, atol=tolerance)


def test_each_gradient_has_the_dtype_of_its_argument(rng: np.random.Generator) -> None:
    q, k, v = (array.astype(np.float32) for array in inputs(rng))
    grad_out = rng.standard_normal((B, H, N, 6)).astype(np.float32)
    mixed = differentiate(grad_out, q, k.astype(np.float16), v.astype(np.float16))
    assert [gradient.dtype for gradient in mixed[:3]] == [np.float32, np.float16, np.float16]
    wide = differentiate(grad_out, q, *(array.astype(np.float16).astype(np.float32) for array in (k, v)))
    assert_close(mixed.k.astype(np.float32), wide.k, coefficient=2.0**14, size=float(np.abs(wide.k).max()))
    bias = rng.standard_normal((N, S)).astype(np.float32)
    half = [array.astype(np.float16) for array in (grad_out, q, k, v)]
    assert differentiate(*half, bias=bias).bias.dtype == np.float32


@pytest.mark.parametrize("how", ["heads_last", "dim_major", "negative", "gaps"])
def test_strides(how: str, rng: np.random.Generator) -> None:
    arrays = [array.astype(np.float32) for array in [rng.standard_normal((B, H, N, 6)), *inputs(rng)]]
    out, lse = forward(*arrays[1:])
    expected = qkv.attention_backward(*arrays, out, lse)
    views = [strided(array, rng, how) for array in [*arrays, out]]
    rows = np.full((*lse.shape, 3), np.nan, np.float32)
    rows[..., 1] = lse
    for actual, one in zip(qkv.attention_backward(*views, rows[..., 1])[:3], expected[:3], strict=True):
        assert_same_bits(actual, one)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (B, 1, N, 1), (1, H, 1, 6)])
def test_upstream_that_repeats(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """The gradient of a sum has stride 0 everywhere."""
    arrays = [array.astype(np.float32) for array in inputs(rng)]
    repeated = np.broadcast_to(rng.standard_normal(shape).astype(np.float32), (B, H, N, 6))
    for actual, expected in zip(
        differentiate(repeated, *arrays)[:3], differentiate(repeated.copy(), *arrays)[:3], strict=True
    ):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("need", [(), ("v",), ("k",), ("q", "k"), ("sinks",), ("bias", "q")], ids="-".join)
def test_what_is_needed_does_not_depend_on_what_else_is(need: Any, rng: np.random.Generator) -> None:
    arrays = [array.astype(np.float32) for array in [rng.standard_normal((B, H, N, 6)), *inputs(rng)]]
    options = {"bias": arrays[0][0, :, :, :1].copy(), "sinks": np.ones(H, np.float32)}
    everything = differentiate(*arrays, **options)
    some = differentiate(*arrays, **options, need=need)
    assert [name for name in ALL if getattr(some, name) is not None] == [name for name in ALL if name in need]
    for name in need:
        assert_same_bits(getattr(some, name), getattr(everything, name))


def test_hidden_keys_and_empty_rows_give_exactly_nothing(target: str, rng: np.random.Generator) -> None:
    q, k, v = (array.astype(np.float32) for array in inputs(rng))
    grad_out = rng.standard_normal((B, H, N, 6)).astype(np.float32)
    k[:, :, 5:], v[:, :, 5:] = np.nan, np.nan
    lens = [5, 0]
    gradients = differentiate(grad_out, q, k, v, kv_lens=lens)
    assert all(np.isfinite(gradient).all() for gradient in gradients[:3])
    assert not gradients.q[1].any()
    assert not any(g[:, :, 5:].any() or g[1].any() for g in (gradients.k, gradients.v))
    one = differentiate(grad_out, q, k, v, kv_lens=[1, 1])
    assert not one.q.any()
    assert not one.k.any()
    np.testing.assert_allclose(one.v[:, :, 0], grad_out.reshape(B, 2, 2 * N, 6).sum(2), rtol=1e-5, atol=1e-5)


def test_a_sink_gets_nothing_from_the_out_of_an_empty_row(target: str, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    grad_lse = rng.standard_normal((B, H, N))
    grad_out = np.full((B, H, N, 6), np.nan)
    gradients = differentiate(grad_out, q, k, v, kv_lens=[0, 0], sinks=np.ones(H), grad_lse=grad_lse)
    assert_close(gradients.sinks, grad_lse.sum((0, 2)))


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_leading_axes(rank: int, rng: np.random.Generator) -> None:
    grad_out, q, k, v = (
        rng.standard_normal(s[-rank:]) for s in ((2, 4, 3, 6), (2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6))
    )
    gradients = differentiate(grad_out, q, k, v)
    assert [gradient.shape for gradient in gradients[:3]] == [q.shape, k.shape, v.shape]
    lead = (None,) * (4 - rank)
    full = differentiate(grad_out[lead], q[lead], k[lead], v[lead])
    for actual, expected in zip(gradients[:3], full[:3], strict=True):
        assert_same_bits(actual[lead], expected)


@pytest.mark.parametrize(("n", "s", "d_v"), [(0, 4, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)])
def test_empty_extents(n: int, s: int, d_v: int, target: str) -> None:
    ones = [np.ones(shape, np.float32) for shape in ((1, 2, n, d_v), (1, 2, n, 4), (1, 1, s, 4), (1, 1, s, d_v))]
    gradients = differentiate(*ones, sinks=np.ones(2, np.float32), bias=np.ones((n, s), np.float32))
    for gradient, argument in zip(gradients[:3], ones[1:], strict=True):
        assert gradient.shape == argument.shape
        assert not gradient.any()
    assert gradients.bias.shape == (n, s)
    assert not gradients.bias.any()
    assert not gradients.sinks.any()
