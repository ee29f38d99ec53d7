"""qkv.torch.MultiheadAttention and TransformerEncoderLayer beside PyTorch's, with the same state_dict."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from support import bare_signature, optional
from torch_support import DOUBLE, SINGLE, close, gradients, needs_dropout, rows

import qkv

torch: Any = optional("torch")
if torch:
    import qkv.torch

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),  # PyTorch's, of a bool mask beside a float one
]

E, HEADS, BATCH, N, S = 12, 3, 2, 5, 7


def pair(**options: Any) -> tuple[Any, Any]:
    """(ours, theirs) with the same parameters, in double."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(E, HEADS, dtype=torch.double, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():  # biases are 0 at first
            parameter.copy_(torch.randn_like(parameter) / 2)
    ours = qkv.torch.MultiheadAttention(E, HEADS, dtype=torch.double, **options)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert ours.load_state_dict(theirs.state_dict()) is not None
    return ours, theirs


def inputs(batch_first: bool = False, kdim: int = E, vdim: int = E) -> list[Any]:
    made = [rows(N, BATCH, E), rows(S, BATCH, kdim, seed=1), rows(S, BATCH, vdim, seed=2)]
    return [x.detach().transpose(0, 1).contiguous().requires_grad_() for x in made] if batch_first else made


def agree(ours: Any, theirs: Any, arguments: list[Any], tolerance: float = DOUBLE, **options: Any) -> None:
    """Outputs, weights, and gradients of inputs and parameters."""
    one, two = ours(*arguments, **options), theirs(*arguments, **options)
    close(one[0], two[0], tolerance)
    assert (one[1] is None) == (two[1] is None)
    found = [(one[0],), (two[0],)]
    if one[1] is not None:
        close(one[1], two[1], tolerance)
        found = [one, two]
    extra = [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    unique = list({id(x): x for x in [*arguments, *extra]}.values())
    mine = gradients(found[0], [*unique, *ours.parameters()])
    other = gradients(found[1], [*unique, *theirs.parameters()])
    for a, b in zip(mine, other, strict=True):
        close(a, b, tolerance)


def padding() -> Any:
    mask = torch.zeros(BATCH, S, dtype=torch.bool)
    mask[0, 5:] = True
    mask[1, 0] = True
    return mask


def masks() -> dict[str, tuple[Any, Any]]:
    """(key_padding_mask, attn_mask); every row sees a key."""
    if not torch:
        return {}
    pad = padding()
    flat = rows(N, S, seed=20, grad=False) > 0.7
    flat[:, 2:4] = False
    per_head = rows(BATCH * HEADS, N, S, seed=21, grad=False) > 0.7
    per_head[..., 2:4] = False
    as_float = rows(N, S, seed=22)
    pad_float = rows(BATCH, S, seed=23)
    hiding = torch.zeros(N, S, dtype=torch.double).masked_fill(flat, -torch.inf)
    return {
        "none": (None, None),
        "padding": (pad, None),
        "flat": (None, flat),
        "per_head": (None, per_head),
        "padding_flat": (pad, flat),
        "padding_per_head": (pad, per_head),
        "float": (None, as_float),
        "float_per_head": (None, rows(BATCH * HEADS, N, S, seed=24)),
        "hiding": (None, hiding),
        "padding_float": (pad, as_float),
        "float_padding": (pad_float, None),
        "floats": (pad_float, as_float),
        "float_padding_flat": (pad_float, flat),
    }


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("name", masks())
def test_masks(name: str, need_weights: bool) -> None:
    pad, mask = masks()[name]
    for mode in ("train", "eval"):
        ours, theirs = (getattr(module, mode)() for module in pair())
        options = {"key_padding_mask": pad, "attn_mask": mask, "need_weights": need_weights}
        agree(ours, theirs, inputs(), **options)
        with torch.no_grad():
            one, two = ours(*inputs(), **options), theirs(*inputs(), **options)
        close(one[0], two[0])
        if need_weights:
            close(one[1], two[1])


LAYOUTS: list[dict[str, Any]] = [
    {"bias": False},
    {"batch_first": True},
    {"kdim": 5, "vdim": 9},
    {"kdim": 5, "bias": False, "batch_first": True},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "vdim": 9},
]


@pytest.mark.parametrize("options", LAYOUTS, ids=lambda o: "-".join(o))
@pytest.mark.parametrize("average", [True, False])
def test_layouts(options: dict[str, Any], average: bool) -> None:
    ours, theirs = pair(**options)
    arguments = inputs(options.get("batch_first", False), options.get("kdim", E), options.get("vdim", E))
    for pad, mask in (masks()[name] for name in ("none", "padding_flat", "floats", "float_per_head")):
        agree(ours, theirs, arguments, key_padding_mask=pad, attn_mask=mask, average_attn_weights=average)
        agree(ours, theirs, arguments, key_padding_mask=pad, attn_mask=mask, need_weights=False)


@pytest.mark.parametrize("batch_first", [False, True])
def test_which_tensors_are_one_and_unbatched(batch_first: bool) -> None:
    ours, theirs = pair(batch_first=batch_first)
    q, k, v = inputs(batch_first)
    for arguments in ([q, q, q], [q, k, k], [k, k, v], [k, v, k], [q, k, v]):
        for need_weights in (True, False):
            agree(ours, theirs, arguments, need_weights=need_weights)
    single = [rows(N, E), rows(S, E, seed=1), rows(S, E, seed=2)]
    for average in (True, False):
        agree(ours, theirs, single, average_attn_weights=average, key_padding_mask=padding()[0])
    agree(ours, theirs, single, need_weights=False, attn_mask=masks()["flat"][1])
    agree(ours, theirs, single, attn_mask=rows(HEADS, N, S))


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["plain", "more_keys"])
def test_is_causal(options: dict[str, Any]) -> None:
    """With PyTorch's mask of it, and without any."""
    ours, theirs = pair(**options)
    x = rows(N, BATCH, E)
    square = torch.nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.double)
    pad = padding()[:, 2:]  # at the end of one
    pad[1] = False
    for mask, key_padding, weights in itertools.product((square, square < 0), (None, pad), (True, False)):
        given = {"key_padding_mask": key_padding, "need_weights": weights}
        expected = theirs(x, x, x, attn_mask=mask, **given)[0]
        for mine in (
            ours(x, x, x, attn_mask=mask, is_causal=True, **given)[0],
            ours(x, x, x, is_causal=True, **given)[0],
        ):
            close(mine, expected)
            for a, b in zip(gradients(mine, [x]), gradients(expected, [x]), strict=True):
                close(a, b)


def test_rows_that_see_nothing_have_weights_0() -> None:
    ours, _ = pair()
    x = rows(N, BATCH, E)
    pad = torch.zeros(BATCH, N, dtype=torch.bool)
    pad[1] = True
    zero = ours.out_proj(torch.zeros(1, E, dtype=torch.double))
    added = torch.zeros(BATCH, N, dtype=torch.double).masked_fill(pad, -torch.inf)
    for recorded, weights, mask in itertools.product((True, False), (True, False), (pad, added)):
        with torch.set_grad_enabled(recorded):
            out, given = ours(x, x, x, key_padding_mask=mask, need_weights=weights)
        close(out[:, 1], zero.expand(N, E))
        if given is not None:
            assert not given[1].any()
            close(given[0].sum(-1), torch.ones(N, dtype=torch.double))
        if recorded:
            for gradient in gradients((out,) if given is None else (out, given), [x, *ours.parameters()]):
                assert gradient.isfinite().all()


def test_weights_after_dropout_are_those_that_were_used() -> None:
    ours, theirs = pair(dropout=0.5)
    arguments = inputs()
    torch.manual_seed(1)
    out, weights = ours.train()(*arguments, average_attn_weights=False)
    torch.manual_seed(1)
    other, other_weights = theirs.train()(*arguments, average_attn_weights=False)
    close(out, other)
    close(weights, other_weights)
    assert (weights == 0).any()
    for a, b in zip(gradients((out, weights), arguments), gradients((other, other_weights), arguments), strict=True):
        close(a, b)
    out, weights = ours.eval()(*arguments)
    assert (weights > 0).all()


@needs_dropout
def test_dropout_without_weights() -> None:
    ours, _ = pair(dropout=0.5)
    arguments = inputs()
    expected = ours.eval()(*arguments, need_weights=False)[0]
    ours.train()
    torch.manual_seed(1)
    first = ours(*arguments, need_weights=False)[0]
    torch.manual_seed(1)
    assert torch.equal(ours(*arguments, need_weights=False)[0], first)
    mean = sum(ours(*arguments, need_weights=False)[0] for _ in range(3000)) / 3000
    assert (mean - expected).abs().max() < 0.2 * expected.abs().max()


def test_weights_need_no_matrix_in_inference() -> None:
    ours, theirs = pair()
    with torch.inference_mode():
        close(ours(*inputs())[1], theirs(*inputs())[1])
    single = ours.float()
    out, weights = single(*(x.float().detach() for x in inputs()))
    assert (out.dtype, weights.dtype) == (torch.float32, torch.float32)
    with torch.no_grad():
        half = single.bfloat16()(*(x.bfloat16() for x in inputs()))
    assert [x.dtype for x in half] == [torch.bfloat16, torch.bfloat16]


def test_signatures_are_those_of_pytorch() -> None:
    for ours, theirs in (
        (qkv.torch.MultiheadAttention.forward, torch.nn.MultiheadAttention.forward),
        (qkv.torch.TransformerEncoderLayer.forward, torch.nn.TransformerEncoderLayer.forward),
        (qkv.torch.multi_head_attention_forward, torch.nn.functional.multi_head_attention_forward),
    ):
        assert bare_signature(ours) == bare_signature(theirs)
    assert isinstance(qkv.torch.MultiheadAttention(4, 2), torch.nn.MultiheadAttention)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"attn_mask": (N, S + 1)}, r"^attn_mask: shape \[5, 8\], expected \[q_len, kv_len\] = \[5, 7\]"),
        ({"attn_mask": (BATCH, N, S)}, r"^attn_mask: shape \[2, 5, 7\], expected \[batch \* num_heads"),
        ({"key_padding_mask": (S, BATCH)}, r"^key_padding_mask: shape \[7, 2\], expected \[batch, kv_len\]"),
        ({"query": (N, BATCH, E + 1)}, r"^query: embed_dim is 13, expected 12"),
        ({"key": (S, E)}, r"^key: shape \[7, 12\] beside a query of shape \[5, 2, 12\]"),
        ({"value": (S + 1, BATCH, E)}, r"^value: shape \[8, 2, 12\] does not fit key"),
        ({"query": (N, BATCH + 1, E)}, r"^key: shape .* expected the batch of query, 3"),
        ({"attn_mask": "int"}, r"^attn_mask: torch.int64; expected bool \(True = hidden; use mask != 0\)"),
    ],
)
def test_errors(change: dict[str, Any], text: str) -> None:
    ours, _ = pair()
    arguments: dict[str, Any] = dict(zip(("query", "key", "value"), inputs(), strict=True))
    for name, shape in change.items():
        arguments[name] = torch.zeros(N, S, dtype=torch.int64) if shape == "int" else torch.zeros(shape).double()
    with pytest.raises((qkv.ShapeError, TypeError), match=text):
        ours(**arguments)


# --- the encoder layer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_encoder_layer(norm_first: bool, batch_first: bool, mode: str) -> None:
    options = {
        "dim_feedforward": 20, "dropout": 0.0, "activation": "gelu", "norm_first": norm_first,
        "batch_first": batch_first, "dtype": torch.double, "bias": not norm_first,
    }  # fmt: skip
    theirs = torch.nn.TransformerEncoderLayer(E, HEADS, **options)
    ours = qkv.torch.TransformerEncoderLayer(E, HEADS, **options)
    ours.load_state_dict(theirs.state_dict())
    ours, theirs = getattr(ours, mode)(), getattr(theirs, mode)()
    x = rows(BATCH, N, E) if batch_first else rows(N, BATCH, E)
    pad = torch.zeros(BATCH, N, dtype=torch.bool)
    pad[1, 3:] = True
    causal = torch.nn.Transformer.generate_square_subsequent_mask(N, dtype=torch.double)
    for given in ({}, {"src_key_padding_mask": pad}, {"src_mask": causal}, {"src_mask": causal, "is_causal": True},
                  {"src_mask": causal < 0, "src_key_padding_mask": pad}):  # fmt: skip
        one, two = ours(x, **given), theirs(x, **given)
        close(one, two)
        mine, other = gradients(one, [x, *ours.parameters()]), gradients(two, [x, *theirs.parameters()])
        for a, b in zip(mine, other, strict=True):
            close(a, b)
        with torch.no_grad():
            close(ours(x, **given), two.detach())
    unbatched = rows(N, E)
    close(ours(unbatched), theirs(unbatched))


def test_encoder_layer_of_a_seed_is_that_of_pytorch() -> None:
    made = []
    for kind in (qkv.torch.TransformerEncoderLayer, torch.nn.TransformerEncoderLayer):
        torch.manual_seed(5)
        made.append(kind(E, HEADS, 20).state_dict())
    assert made[0].keys() == made[1].keys()
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("nested", [False, True])
def test_encoder_of_our_layers(nested: bool) -> None:
    layers = [
        kind(E, HEADS, 20, batch_first=True)
        for kind in (qkv.torch.TransformerEncoderLayer, torch.nn.TransformerEncoderLayer)
    ]
    ours, theirs = (torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval() for layer in layers)
    ours.load_state_dict(theirs.state_dict())
    x = rows(BATCH, N, E, dtype=torch.float32, grad=False)
    pad = torch.zeros(BATCH, N, dtype=torch.bool)
    pad[1, 3:] = True
    with torch.no_grad():
        one, two = ours(x, src_key_padding_mask=pad), theirs(x, src_key_padding_mask=pad)
    real = ~pad
    close(one[real], two[real], SINGLE)


# --- the articles' module -----------------------------------------------------------------------------------------


class ByHand(torch.nn.Module if torch else object):  # type: ignore[misc]
    """Multi-head attention as it is taught: four projections, heads split, a mask whose zeros are hidden."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, torch.nn.Linear(d_model, d_model, dtype=torch.double))

    def split(self, x: Any) -> Any:
        return x.view(x.shape[0], x.shape[1], self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        q, k, v = self.split(self.W_q(query)), self.split(self.W_k(key)), self.split(self.W_v(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        heads = torch.softmax(scores, dim=-1) @ v
        return self.W_o(heads.transpose(1, 2).reshape(query.shape[0], -1, self.num_heads * self.d_k))


class OnOurs(ByHand):
    """The same names, so the same state_dict; its attention is ours."""

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        q, k, v = self.split(self.W_q(query)), self.split(self.W_k(key)), self.split(self.W_v(value))
        heads = qkv.torch.scaled_dot_product_attention(q, k, v, None if mask is None else mask != 0)
        return self.W_o(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("masked", [False, True])
def test_the_module_as_it_is_taught(masked: bool) -> None:
    torch.manual_seed(2)
    by_hand, ours, packed = ByHand(E, HEADS), OnOurs(E, HEADS), qkv.torch.MultiheadAttention(
        E, HEADS, batch_first=True, dtype=torch.double
    )  # fmt: skip
    state = by_hand.state_dict()
    ours.load_state_dict(state)
    packed.load_state_dict(
        {
            "in_proj_weight": torch.cat([state[f"W_{x}.weight"] for x in "qkv"]),
            "in_proj_bias": torch.cat([state[f"W_{x}.bias"] for x in "qkv"]),
            "out_proj.weight": state["W_o.weight"],
            "out_proj.bias": state["W_o.bias"],
        }
    )
    query, key, value = inputs(batch_first=True)
    mask = (~padding()).long()[:, None, None, :] if masked else None
    expected = by_hand(query, key, value, mask)
    leaves = [query, key, value]
    wanted = gradients(expected, [*leaves, *by_hand.parameters()])
    out = ours(query, key, value, mask)
    close(out, expected)
    for a, b in zip(gradients(out, [*leaves, *ours.parameters()]), wanted, strict=True):
        close(a, b)
    for weights in (True, False):
        out = packed(query, key, value, key_padding_mask=padding() if masked else None, need_weights=weights)[0]
        close(out, expected)
        for a, b in zip(gradients(out, leaves), wanted, strict=False):
            close(a, b)
