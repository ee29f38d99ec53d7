"""qkv.position.Rope, beside Hugging Face's rotations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, assert_same_bits, optional, strided

import qkv
from qkv.position import Rope

ml_dtypes: Any = optional("ml_dtypes")
torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")
needs_hf = pytest.mark.needs("transformers")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
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


def test_numbers_of_a_configuration() -> None:
    rope = Rope(64, scaling={"rope_theta": 500000.0, "partial_rotary_factor": 0.25, "type": "linear", "factor": 2})
    assert (rope.base, rope.rotary_dim, rope.head_dim, rope.layout) == (500000.0, 16, 64, "half")
    assert repr(rope) == "Rope(head_dim=64, base=500000.0, rotary_dim=16, layout='half', scaling='linear')"
    assert rope.frequencies()[0] == 0.5
    assert Rope(8, scaling={"rope_theta": 100.0}).base == 100.0
    assert Rope(8, base=100, scaling={"rope_theta": 100.0, "rope_type": "default", "type": None}).base == 100.0
    assert Rope(8).base == 10000.0
    assert Rope(8, scaling=None).attention_factor == 1.0


def test_yarn_takes_what_it_lacks_from_the_model() -> None:
    given = {"rope_type": "yarn", "factor": 4.0}
    full = Rope(64, scaling={**given, "original_max_position_embeddings": 2048}).frequencies()
    assert_same_bits(Rope(64, scaling=given, max_position=2048).frequencies(), full)
    implied = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 2048}
    assert_same_bits(Rope(64, scaling=implied, max_position=8192).frequencies(), full)
    zeros = {**given, "beta_fast": 0, "beta_slow": None, "original_max_position_embeddings": 2048}
    assert_same_bits(Rope(64, scaling=zeros).frequencies(), full)


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        (
            {"rope_type": "longrope"},
            r"scaling: rope_type 'longrope' is not supported, expected one of default, linear, ",
        ),
        ({"type": "su"}, r"scaling: rope_type 'su' is not supported"),
        ({"rope_type": "linear", "type": "yarn"}, r"scaling: rope_type is 'linear', but type is 'yarn'$"),
        ({"rope_type": "linear"}, r"scaling: 'linear' needs 'factor', which is missing$"),
        ({"rope_type": "linear", "factor": None}, r"scaling: 'linear' needs 'factor', which is missing$"),
        (
            {"rope_type": "linear", "factor": 2, "beta_fast": 3},
            r"scaling: 'linear' takes no 'beta_fast', expected some",
        ),
        ({"rope_type": "default", "factor": 2}, r"scaling: 'default' takes no 'factor'"),
        ({"factor": 2.0}, r"scaling: 'default' takes no 'factor'"),
        ({"rope_type": "dynamic", "factor": 2}, r"max_position: dynamic scaling needs it$"),
        ({"rope_type": "yarn", "factor": 2}, r"scaling: 'yarn' needs 'original_max_position_embeddings'"),
        ({**LLAMA3, "high_freq_factor": None}, r"scaling: 'llama3' needs 'high_freq_factor'"),
        (
            {**LLAMA3, "high_freq_factor": 1},
            r"scaling.high_freq_factor: expected more than low_freq_factor = 1, got 1$",
        ),
        ({**YARN, "factor": 0.5}, r"scaling.factor: expected a finite number from 1 on, got 0.5$"),
        (
            {**YARN, "original_max_position_embeddings": 0},
            r"scaling.original_max_position_embeddings: expected at least 1, got 0$",
        ),
        ({"partial_rotary_factor": 0.3}, r"rotary_dim: expected an even number from 2 to head_dim = 64, got 19$"),
    ],
)
def test_scalings_that_are_refused(scaling: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="^" + text):
        Rope(64, scaling=scaling)


def test_arguments_that_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^head_dim: 7 is odd; say by rotary_dim how many columns turn$"):
        Rope(7)
    for dim in (3, 10, 0):
        with pytest.raises(qkv.ValueError, match=rf"^rotary_dim: expected an even .* to head_dim = 8, got {dim}$"):
            Rope(8, rotary_dim=dim)
    with pytest.raises(ValueError, match=r"^rotary_dim: 4 is given, but scaling has partial_rotary_factor 0.25: 2$"):
        Rope(8, rotary_dim=4, scaling={"partial_rotary_factor": 0.25})
    with pytest.raises(ValueError, match=r"^base: 100.0 is given, but scaling has rope_theta 200.0$"):
        Rope(8, base=100.0, scaling={"rope_theta": 200.0})
    with pytest.raises(qkv.ValueError, match=r'^layout: expected "half" or "interleaved", got "neox"$'):
        Rope(8, layout="neox")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^scaling: expected a dict as a config's rope_parameters, got str$"):
        Rope(8, scaling="linear")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^scaling.factor: expected a number, got str '2'"):
        Rope(8, scaling={"rope_type": "linear", "factor": "2"})
    with pytest.raises(TypeError, match=r"^scaling.truncate: expected a bool, got int 1"):
        Rope(8, scaling={**YARN, "truncate": 1})
    with pytest.raises(TypeError, match=r"^scaling: rope_type: expected a str, got int$"):
        Rope(8, scaling={"rope_type": 3})


def test_calls_that_are_refused() -> None:
    rope = Rope(8)
    x = np.ones((2, 3, 4, 8), np.float32)
    with pytest.raises(qkv.ValueError, match=r"^first: given beside positions, which say where every row is$"):
        rope.apply(x, [0, 1, 2, 3], first=1)
    with pytest.raises(qkv.ValueError, match=r"^backward: given beside inverse; they differ by the attention factor$"):
        rope.apply(x, inverse=True, backward=True)
    with pytest.raises(
        qkv.ShapeError, match=r"^positions: expected \[n\] = \[4\] or \[batch, n\] = \[2, 4\], got \[3\]"
    ):
        rope.apply(x, [0, 1, 2])
    with pytest.raises(qkv.DtypeError, match=r"^positions: expected int32 or int64, got float64$"):
        rope.apply(x, np.zeros(4))
    with pytest.raises(TypeError, match=r"^positions: expected a sequence of ints, got int 5"):
        rope.apply(x, 5)
    with pytest.raises(qkv.ShapeError, match=r"^x: expected head_dim = 8 as the last axis, got \[2, 3, 8, 4\]$"):
        rope.apply(x.swapaxes(2, 3))
    with pytest.raises(qkv.ValueError, match=r"^out: .* shares memory with x"):
        rope.apply(x[:, :, :3], out=x[:, :, 1:])
    with pytest.raises(qkv.DtypeError, match=r"^out: expected float32, got float64$"):
        rope.apply(x, out=np.ones(x.shape))
    with pytest.raises(qkv.ValueError, match=r"^seq_len: expected at least 1, got 0$"):
        rope.apply(x, seq_len=0)
    with pytest.raises(qkv.ValueError, match=r"^positions: expected at most 2\^53, got 4 rows from"):
        rope.apply(x, first=2**53)
    with pytest.raises(TypeError, match=r"^x: expected a NumPy array"):
        rope.apply([1.0] * 8)


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


DTYPES = ["float32", "float64", "float16", pytest.param("bfloat16", marks=pytest.mark.needs("ml_dtypes"))]


def stored(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("dtype", DTYPES)
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


@pytest.mark.parametrize("dtype", DTYPES)
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
