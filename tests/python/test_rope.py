"""qkv.position.Rope, beside Hugging Face's rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support import LLAMA3, REAL, YARN, DLPackOnly, assert_same_bits, optional, stored, strided

import qkv
from qkv.position import Rope

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")
# Of the release whose inner names are used.
needs_hf = pytest.mark.needs("transformers", "5.24.0")

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 4.0},
    YARN,
    {**YARN, "factor": 1.0},
    {**YARN, "beta_fast": 8, "beta_slow": 2, "truncate": False},
    {**YARN, "attention_factor": 0.7},
    {**YARN, "mscale": 0.707, "mscale_all_dim": 1.2},
    {**YARN, "mscale": 1.0, "mscale_all_dim": 0},
    {**YARN, "original_max_position_embeddings": 4},
    {**YARN, "original_max_position_embeddings": 2**40},
    LLAMA3,
    {**LLAMA3, "low_freq_factor": 2, "high_freq_factor": 2.5, "factor": 32},
]
MAX_POSITION = 2048


def name_of(scaling: dict[str, Any]) -> str:
    return "-".join(str(value) for value in scaling.values())


class InDouble:
    """PyTorch, but for the name of float32: what is written with it computes in float64."""

    def __getattr__(self, name: str) -> Any:
        return torch.float64 if name in ("float", "float32") else getattr(torch, name)


def llama(scaling: dict[str, Any], head_dim: int, base: float) -> Any:
    """The rotations of a Llama model and its configuration."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_theta": base, **scaling},
    )
    return LlamaRotaryEmbedding, config


def hf_frequencies(scaling: dict[str, Any], head_dim: int, base: float, seq_len: int | None) -> tuple[Any, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model, config = llama(scaling, head_dim, base)
    kind = scaling["rope_type"]
    if kind == "default":
        return model.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[kind](config, seq_len=seq_len)


@needs_torch
@needs_hf
@pytest.mark.parametrize("scaling", SCALINGS, ids=name_of)
@pytest.mark.parametrize(("head_dim", "base"), [(8, 10000.0), (64, 10000.0), (128, 500000.0), (80, 1e6)])
@pytest.mark.parametrize("seq_len", [None, 100, 5000])
def test_frequencies_are_hugging_faces(
    scaling: dict[str, Any], head_dim: int, base: float, seq_len: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rope = Rope(head_dim, base=base, scaling=scaling, max_position=MAX_POSITION)
    # Theirs are float32: the exponent's rounding grows with ln(base), and what it makes of the frequency with the slope
    # of the ramp.
    frequencies, factor = hf_frequencies(scaling, head_dim, base, seq_len)
    exponent = math.log(base) * (4 if scaling["rope_type"] == "dynamic" else 1)
    high, low = scaling.get("high_freq_factor", 1), scaling.get("low_freq_factor", 0)
    tolerance = np.finfo(np.float32).eps * (4 + exponent) * high / (high - low)
    np.testing.assert_allclose(rope.frequencies(seq_len), frequencies.numpy(), rtol=tolerance)
    assert math.isclose(rope.attention_factor, factor, rel_tol=1e-15)
    # And the same lines in float64.
    monkeypatch.setattr("transformers.modeling_rope_utils.torch", InDouble())
    monkeypatch.setattr("transformers.models.llama.modeling_llama.torch", InDouble())
    frequencies, factor = hf_frequencies(scaling, head_dim, base, seq_len)
    assert frequencies.dtype == torch.float64
    np.testing.assert_allclose(rope.frequencies(seq_len), frequencies.numpy(), rtol=1e-12)


@needs_torch
@needs_hf
@pytest.mark.parametrize("scaling", SCALINGS, ids=name_of)
def test_rotations_are_llamas(scaling: dict[str, Any], rng: np.random.Generator) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    head_dim, base = 64, 10000.0
    rope = Rope(head_dim, base=base, scaling=scaling, max_position=MAX_POSITION)
    q, k = (torch.from_numpy(rng.standard_normal((2, heads, 9, head_dim))) for heads in (4, 2))
    ids = torch.from_numpy(rng.integers(0, 3000, (2, 9)))
    angles = ids[..., None] * torch.from_numpy(rope.frequencies(int(ids.max()) + 1))
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    for x, expected in zip((q, k), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        torch.testing.assert_close(rope.apply(x, ids), expected, rtol=0, atol=1e-11)


@needs_torch
@needs_hf
@pytest.mark.parametrize("scaling", SCALINGS, ids=name_of)
@pytest.mark.parametrize("first", [0, 4000])
def test_a_llama_model_rotates_so(scaling: dict[str, Any], first: int, rng: np.random.Generator) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model, config = llama(scaling, 64, 10000.0)
    q = torch.from_numpy(rng.standard_normal((1, 4, 50, 64), dtype=np.float32))
    cos, sin = model(config)(q, torch.arange(first, first + 50)[None])
    expected = apply_rotary_pos_emb(q, q, cos, sin)[0]
    actual = Rope(64, scaling=scaling, max_position=MAX_POSITION).apply(q, first=first)
    # Their angles are float32.
    off = 1e-5 + (first + 50) * 2**-20
    torch.testing.assert_close(actual, expected, rtol=0, atol=off * 5)


def formula(x: np.ndarray, rope: Rope, positions: np.ndarray) -> np.ndarray:
    """Written down plainly, in float64: x [..., n, head_dim]."""
    angles = positions[:, None] * rope.frequencies()
    turned = x.astype(np.float64)
    half = rope.rotary_dim // 2
    first, second = (np.arange(half), half + np.arange(half))
    if rope.layout == "interleaved":
        first, second = 2 * np.arange(half), 2 * np.arange(half) + 1
    a, b = turned[..., first], turned[..., second]
    cos, sin = np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor
    turned[..., first], turned[..., second] = a * cos - b * sin, b * cos + a * sin
    return turned


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("first", [0, 4095, 1_000_000, -50])
def test_apply_is_the_formula(dtype: str, layout: Any, first: int, rng: np.random.Generator) -> None:
    rope = Rope(48, rotary_dim=36, layout=layout)
    x = stored(rng.standard_normal((2, 3, 20, 48)), dtype)
    expected = formula(x, rope, first + np.arange(20))
    actual = rope.apply(x, first=first)
    assert actual.dtype == x.dtype
    half_ulp = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    # The angles' float64, and of 16 bits the float32 on the way.
    on_the_way = abs(first + 20) * 2.0**-50 + 2.0**-46 + (2.0**-20 if half_ulp > 1e-4 else 0)
    allowed = 1.0001 * half_ulp * np.abs(expected) + on_the_way
    assert np.all(np.abs(actual.astype(np.float64) - expected) <= allowed)
    assert_same_bits(actual[..., 36:], x[..., 36:])


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("how", ["heads_last", "dim_major", "negative", "gaps"])
def test_strides_and_places(dtype: str, how: str, rng: np.random.Generator) -> None:
    rope = Rope(16)
    x = stored(rng.standard_normal((2, 3, 70, 16)), dtype)
    expected = rope.apply(x, first=9)
    view = strided(x, rng, how)
    assert_same_bits(rope.apply(view, first=9), expected)
    out = strided(np.zeros_like(x), rng, how)
    assert rope.apply(x, first=9, out=out) is out
    assert_same_bits(out, expected)
    assert rope.apply(view, first=9, out=view) is view  # in place
    assert_same_bits(view, expected)


def test_positions_of_all_kinds(rng: np.random.Generator) -> None:
    rope = Rope(16)
    x = rng.standard_normal((2, 3, 4, 16), dtype=np.float32)
    expected = rope.apply(x, first=7)
    for ids in (
        [7, 8, 9, 10],
        range(7, 11),
        np.arange(7, 11),
        np.arange(7, 11, dtype=np.int32)[None],
        iter([7, 8, 9, 10]),
    ):
        assert_same_bits(rope.apply(x, ids), expected)
    each = np.array([[3, -2, 0, 100], [7, 8, 9, 10]])
    turned = rope.apply(x, each)
    assert_same_bits(turned[1], expected[1])
    assert_same_bits(turned[0], rope.apply(x[0], each[0]))
    assert_same_bits(rope.apply(DLPackOnly(x), first=7), expected)


@needs_torch
def test_tensors(rng: np.random.Generator) -> None:
    rope = Rope(16, layout="interleaved")
    x = torch.from_numpy(rng.standard_normal((2, 3, 4, 16), dtype=np.float32))
    turned = rope.apply(x, torch.arange(4))
    assert type(turned) is torch.Tensor
    assert_same_bits(turned.numpy(), rope.apply(x.numpy()))
    half = rope.apply(x.bfloat16())
    assert half.dtype == torch.bfloat16
    version = x._version
    assert rope.apply(x, out=x) is x
    assert x._version > version
    assert torch.equal(x, turned)
    with pytest.raises(qkv.ValueError, match=r"^x: requires grad"):
        rope.apply(x.requires_grad_())
    with pytest.raises(TypeError, match=r"^positions: a NumPy array, but x is a PyTorch tensor"):
        rope.apply(x.detach(), np.arange(4))


@needs_torch
def test_backward_is_autograds(rng: np.random.Generator) -> None:
    rope = Rope(8, scaling={**YARN, "factor": 32.0})
    x = torch.from_numpy(rng.standard_normal((1, 2, 5, 8))).requires_grad_()
    gradient = torch.from_numpy(rng.standard_normal((1, 2, 5, 8)))
    angles = torch.arange(3, 8)[:, None] * torch.from_numpy(rope.frequencies())
    cos, sin = (torch.cat([f, f], -1) * rope.attention_factor for f in (angles.cos(), angles.sin()))
    (x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin).backward(gradient)
    actual = rope.apply(gradient, first=3, backward=True)
    torch.testing.assert_close(actual, x.grad, rtol=1e-12, atol=1e-12)


def test_inverse_undoes_it(rng: np.random.Generator) -> None:
    rope = Rope(64, scaling={**YARN, "factor": 32.0})
    x = rng.standard_normal((1, 2, 50, 64))
    there = rope.apply(x, first=1234)
    np.testing.assert_allclose(rope.apply(there, first=1234, inverse=True), x, rtol=0, atol=1e-14)


def test_threads_and_splits_do_not_matter(rng: np.random.Generator) -> None:
    rope = Rope(64)
    x = rng.standard_normal((1, 8, 300, 64), dtype=np.float32)
    before = qkv.num_threads()
    results = []
    for threads in (1, 2, 3):
        qkv.set_num_threads(threads)
        results.append(rope.apply(x, first=16300))
    qkv.set_num_threads(before)
    pieces = [rope.apply(x[:, :, i : i + 7], first=16300 + i) for i in range(0, 300, 7)]
    for result in [*results[1:], np.concatenate(pieces, axis=2)]:
        assert_same_bits(result, results[0])


def test_logits_depend_on_distance(rng: np.random.Generator) -> None:
    rope = Rope(32)
    q, k = rng.standard_normal((2, 1, 1, 20, 32))
    scores = [rope.apply(q, first=f)[0, 0] @ rope.apply(k, first=f)[0, 0].T for f in (0, 17, 100_000)]
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(scores[2], scores[0], rtol=0, atol=1e-9)
