"""qkv.torch.scaled_dot_product_attention beside PyTorch's: shapes, masks, autocast, errors; and patch()."""

from __future__ import annotations

from typing import Any

import pytest
from support import bare_signature, optional
from torch_support import SINGLE, close, gradients, needs_dropout, rows, same

import qkv

torch: Any = optional("torch")
if torch:
    import qkv.torch

    theirs = torch.nn.functional.scaled_dot_product_attention

pytestmark = pytest.mark.needs("torch")


def ours(*args: Any, **options: Any) -> Any:
    return qkv.torch.scaled_dot_product_attention(*args, **options)


def by_math(*args: Any, **options: Any) -> Any:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return theirs(*args, **options)


def test_signature_is_that_of_pytorch() -> None:
    documented = " ".join(theirs.__doc__.split(") ->")[0].split()) + ")"
    mine = bare_signature(qkv.torch.scaled_dot_product_attention)
    assert f"scaled_dot_product_attention{mine}" == documented


SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "two": ((3, 8), (5, 8), (5, 8)),
    "three": ((4, 3, 8), (4, 5, 8), (4, 5, 6)),
    "four": ((2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 6)),
    "five": ((3, 2, 4, 3, 8), (3, 2, 4, 5, 8), (3, 2, 4, 5, 8)),
    "query_lacks_batch": ((4, 3, 8), (2, 4, 5, 8), (2, 4, 5, 8)),
    "key_lacks_batch": ((2, 4, 3, 8), (4, 5, 8), (4, 5, 8)),
    "value_alone_has_batch": ((4, 3, 8), (4, 5, 8), (2, 4, 5, 8)),
    "key_of_one_head": ((2, 4, 3, 8), (2, 1, 5, 8), (2, 1, 5, 8)),
    "value_of_one_batch": ((2, 4, 3, 8), (2, 4, 5, 8), (1, 4, 5, 8)),
    "two_in_five": ((3, 8), (2, 3, 2, 5, 8), (5, 8)),
    "no_batch": ((0, 4, 3, 8), (0, 4, 5, 8), (0, 4, 5, 8)),
    "no_heads": ((0, 3, 8), (0, 5, 8), (0, 5, 8)),
    "no_queries": ((2, 4, 0, 8), (2, 4, 5, 8), (2, 4, 5, 8)),
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, is_causal: bool) -> None:
    leaves = [rows(*shape, seed=i) for i, shape in enumerate(SHAPES[name])]
    same(lambda: ours(*leaves, is_causal=is_causal), lambda: by_math(*leaves, is_causal=is_causal), leaves)
    same(lambda: ours(*leaves, scale=0.3), lambda: by_math(*leaves, scale=0.3), leaves)
    with torch.no_grad():
        close(ours(*leaves, is_causal=is_causal), by_math(*leaves, is_causal=is_causal))


MASKS = [
    ("three", (5,)), ("three", (3, 5)), ("three", (1, 5)), ("three", (4, 3, 5)), ("three", (4, 1, 5)), ("two", (3, 5)),
    ("four", (3, 5)), ("four", (1, 1)), ("four", (4, 3, 5)), ("four", (2, 1, 3, 5)), ("four", (2, 4, 1, 5)),
    ("five", (3, 5)), ("five", (1, 1, 1, 3, 5)), ("five", (2, 1, 3, 5)), ("five", (3, 1, 1, 3, 5)),
    ("five", (3, 2, 4, 3, 5)),     ("query_lacks_batch", (2, 1, 3, 5)),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(("name", "shape"), MASKS)
def test_masks(name: str, shape: tuple[int, ...], kind: str) -> None:
    leaves = [rows(*each, seed=i) for i, each in enumerate(SHAPES[name])]
    mask = rows(*shape, seed=9)
    if kind == "bool":
        mask = mask.detach() > -0.5
        same(lambda: ours(*leaves, attn_mask=mask), lambda: by_math(*leaves, attn_mask=mask), leaves)
    else:
        same(lambda: ours(*leaves, mask), lambda: by_math(*leaves, mask), [*leaves, mask])
    with torch.no_grad():
        close(ours(*leaves, mask), by_math(*leaves, mask))


def test_a_mask_with_more_axes_repeats_the_rest() -> None:
    """Which PyTorch refuses."""
    for name, shape in (("three", (2, 1, 3, 5)), ("two", (2, 3, 5)), ("four", (3, 2, 4, 3, 5))):
        leaves = [rows(*each, seed=i) for i, each in enumerate(SHAPES[name])]
        mask = rows(*shape, seed=9)
        lead = torch.broadcast_shapes(shape[:-2], leaves[0].shape[:-2])
        same(
            lambda x=leaves, m=mask: ours(*x, m),
            lambda x=leaves, m=mask, lead=lead: by_math(*(e.expand(*lead, *e.shape[-2:]) for e in x), m),
            [*leaves, mask],
        )


def test_rows_that_see_nothing_are_0() -> None:
    leaves = [rows(*shape, seed=i) for i, shape in enumerate(SHAPES["four"])]
    for hidden in (False, -torch.inf):
        mask = torch.full((3, 5), hidden) if hidden is False else torch.full((3, 5), hidden, dtype=torch.double)
        mask[1] = True if hidden is False else 0.0
        out = ours(*leaves, mask)
        assert not out[:, :, [0, 2]].any()
        assert all(gradient.isfinite().all() for gradient in gradients(out, leaves))
        same(lambda m=mask: ours(*leaves, m), lambda m=mask: by_math(*leaves, m), leaves)


def test_mask_and_is_causal_both_hide() -> None:
    q, k, v = (rows(*shape, seed=i) for i, shape in enumerate(SHAPES["four"]))
    mask = rows(2, 1, 3, 5, seed=9, grad=False) > -0.3
    both = mask & torch.ones(3, 5, dtype=torch.bool).tril()
    same(lambda: ours(q, k, v, mask, is_causal=True), lambda: by_math(q, k, v, both), [q, k, v])
    bias = rows(3, 5, seed=8)
    hiding = torch.where(both, bias, -torch.inf)
    same(lambda: ours(q, k, v, torch.where(mask, bias, -torch.inf), is_causal=True), lambda: by_math(q, k, v, hiding),
         [q, k, v, bias])  # fmt: skip


@pytest.mark.parametrize("lead", [(), (2,), (3, 2)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(kv_heads: int, lead: tuple[int, ...]) -> None:
    leaves = [rows(*lead, 4, 3, 8), rows(*lead, kv_heads, 5, 8, seed=1), rows(*lead, kv_heads, 5, 6, seed=2)]
    mask = rows(*lead, 4, 3, 5, seed=3)
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        same(
            lambda o=options: ours(*leaves, enable_gqa=True, **o),
            lambda o=options: by_math(*leaves, enable_gqa=True, **o),
            leaves,
        )
    if kv_heads == 2:
        with pytest.raises(qkv.ShapeError, match="cannot broadcast"):
            ours(*leaves)


def test_a_float_mask_beside_other_dtypes() -> None:
    q, k, v = (rows(*shape, seed=i) for i, shape in enumerate(SHAPES["four"]))
    mask = rows(3, 5, seed=4, dtype=torch.float32)
    same(lambda: ours(q, k, v, mask), lambda: by_math(q, k, v, mask.double()), [q, k, v, mask])
    half = [x.detach().bfloat16() for x in (q, k, v)]
    out = ours(*half, mask.detach())
    assert out.dtype == torch.bfloat16
    close(out.double(), ours(*(x.double() for x in half), mask.detach()), 2e-2)


def test_without_gradients_goes_straight_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher costs more than a small attention."""
    from qkv.torch import _sdpa

    def refuse(*_: Any) -> Any:
        raise AssertionError("the operator was called")

    q, k, v = (rows(*shape, seed=i, grad=False) for i, shape in enumerate(SHAPES["four"]))
    monkeypatch.setattr(_sdpa, "_operator", refuse)
    mask = rows(3, 5, seed=4, grad=False)
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask > 0}, {"scale": 0.1}):
        close(ours(q, k, v, **options), by_math(q, k, v, **options))
    q.requires_grad_()
    with torch.no_grad():
        ours(q, k, v)
    with pytest.raises(AssertionError, match="operator was called"):
        ours(q, k, v)


@pytest.mark.parametrize("lower", ["bfloat16", "float16"])
def test_autocast_is_that_of_sdpa(lower: str) -> None:
    dtype = getattr(torch, lower)
    leaves = [rows(*shape, seed=i, dtype=torch.float32) for i, shape in enumerate(SHAPES["four"])]
    mask = rows(3, 5, seed=4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        mine, other = ours(*leaves, mask), theirs(*leaves, mask)
        observed = qkv.torch.attention(*leaves, bias=mask, query_offset=0, return_lse=True, return_stats=True)
        exact = ours(*(x.double() for x in leaves))
        off = torch.autocast("cpu", enabled=False)
        with off:
            assert ours(*leaves).dtype == torch.float32
    assert mine.dtype == other.dtype == dtype
    assert exact.dtype == torch.float64
    assert torch.equal(observed[0], mine)
    assert observed[1].dtype == torch.float32
    eps = torch.finfo(dtype).eps
    close(mine.double(), other.double(), 4 * eps)
    found = [torch.autograd.grad(out.float().square().sum(), [*leaves, mask]) for out in (mine, other)]
    for one, two in zip(*found, strict=True):
        assert one.dtype == torch.float32
        close(one, two, 16 * eps)


ERRORS = [
    ({"query": 3}, TypeError, "query: expected a torch.Tensor, got int"),
    ({"key": None}, TypeError, "key: expected a torch.Tensor, got NoneType"),
    ({"query": "complex"}, TypeError, "query"),
    ({"all": "complex"}, TypeError, r"query: torch.complex64, expected a real floating-point dtype"),
    ({"all": "int"}, qkv.DtypeError, "int64 is not supported"),
    ({"value": "half"}, TypeError, "query, key, value: expected one dtype, got torch.float32, .* and torch.float16"),
    ({"all": "sparse"}, ValueError, r"query: a tensor of layout torch.sparse_coo.*query.to_dense\(\)"),
    ({"all": "nested"}, ValueError, "query: a nested tensor; qkv.torch.attention_varlen"),
    ({"all": "jagged"}, ValueError, "query: a nested tensor; qkv.torch.attention_varlen"),
    ({"attn_mask": "int"}, TypeError, "attn_mask: torch.int64; expected bool .*mask != 0"),
    ({"attn_mask": "half"}, TypeError, "attn_mask: torch.float16; expected bool"),
    ({"attn_mask": "wide"}, qkv.ShapeError, r"mask|bias|attn_mask"),
    ({"query": "vector"}, qkv.ShapeError, r"query: shape \[8\], expected at least 2 axes"),
    ({"key": "other"}, qkv.ShapeError, "query, key, value: cannot broadcast"),
    ({"key": "dim"}, qkv.ShapeError, "k: .*head_dim"),
    ({"scale": float("nan")}, ValueError, "scale"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "text"), ERRORS)
@pytest.mark.parametrize("grad", [False, True])
def test_errors(changes: dict[str, Any], error: type, text: str, grad: bool) -> None:
    base = torch.ones(2, 3, 8)
    make = {
        "complex": lambda: base.to(torch.complex64),
        "int": lambda: torch.ones(2, 3, 8, dtype=torch.int64),
        "half": lambda: base.half(),
        "sparse": lambda: base.to_sparse(),
        "nested": lambda: torch.nested.nested_tensor([base[0], base[1, :2]]),
        "jagged": lambda: torch.nested.nested_tensor([base[0], base[1, :2]], layout=torch.jagged),
        "vector": lambda: base[0, 0],
        "other": lambda: torch.ones(5, 3, 8),
        "dim": lambda: torch.ones(2, 3, 7),
    }
    arguments: dict[str, Any] = {name: base.clone() for name in ("query", "key", "value")}
    for name, change in changes.items():
        if name == "attn_mask":
            masks = {
                "int": torch.ones(3, 3, dtype=torch.int64),
                "half": torch.ones(3, 3).half(),
                "wide": torch.ones(3, 4),
            }
            arguments[name] = masks[change]
            continue
        value = make[change]() if isinstance(change, str) else change
        arguments |= dict.fromkeys(("query", "key", "value"), value) if name == "all" else {name: value}
    if grad:
        arguments["value"] = arguments["value"].clone()
        if arguments["value"].is_floating_point():
            arguments["value"].requires_grad_()
    with pytest.raises(error, match=text):
        ours(**arguments)


def test_meta_tensors_have_shapes() -> None:
    x = torch.empty(2, 4, 3, 8, device="meta")
    assert ours(x, x, x[..., :6]).shape == (2, 4, 3, 6)
    assert ours(x, x, x).device.type == "meta"


# --- patch --------------------------------------------------------------------------------------------------------


def test_patch_reaches_models_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    F, mha = torch.nn.functional, torch.backends.mha
    before = F.scaled_dot_product_attention
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0).eval()
    x = rows(2, 5, 16, dtype=torch.float32, grad=False)
    calls = []

    from qkv.torch import _patch

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args[0].shape)
        return qkv.torch.scaled_dot_product_attention(*args, **options)

    monkeypatch.setattr(_patch, "scaled_dot_product_attention", counted)
    with torch.no_grad():
        expected = layer(x)
        with qkv.torch.patch():
            close(layer(x), expected, SINGLE)
    assert calls == [(2, 4, 5, 4)]
    assert F.scaled_dot_product_attention is before
    assert mha.get_fastpath_enabled()


def test_patch_nests_and_survives_exceptions() -> None:
    F, mha = torch.nn.functional, torch.backends.mha
    before = F.scaled_dot_product_attention
    with qkv.torch.patch():
        with pytest.raises(KeyError), qkv.torch.patch():
            raise KeyError
        assert F.scaled_dot_product_attention is qkv.torch.scaled_dot_product_attention
        assert not mha.get_fastpath_enabled()
    assert F.scaled_dot_product_attention is before
    mha.set_fastpath_enabled(False)
    try:
        with qkv.torch.patch():
            pass
        assert not mha.get_fastpath_enabled(), "what was off stays off"
    finally:
        mha.set_fastpath_enabled(True)


@needs_dropout
def test_dropout_in_patched_modules() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.2).train()
    x = rows(2, 5, 16, dtype=torch.float32)
    with qkv.torch.patch():
        torch.manual_seed(3)
        one = layer(x)
        torch.manual_seed(3)
        assert torch.equal(layer(x), one)
        assert not torch.equal(layer(x), one)
    one.sum().backward()
    assert x.grad.isfinite().all()
