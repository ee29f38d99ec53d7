"""How the backward functions are called: signatures, kinds, what is refused, the interpreter lock, ragged batches."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, assert_close, assert_same_bits, bare_signature, optional

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")

F = np.float32
OPTIONS = "causal=False, query_offset=None, window=None, scale=None, softcap=0.0, sinks=None, alibi_slopes=None, "
OWN = "dropout=0.0, seed=None, grad_lse=None, grad_entropy=None, need=('q', 'k', 'v'))"
SIGNATURE = f"(grad_out, q, k, v, out, lse, *, mask=None, bias=None, {OPTIONS}kv_lens=None, {OWN}"
VARLEN_SIGNATURE = f"(grad_out, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *, {OPTIONS}{OWN}"
FUNCTIONS = [
    (qkv.attention_backward, SIGNATURE),
    (qkv.reference.attention_backward, SIGNATURE),
    (qkv.attention_varlen_backward, VARLEN_SIGNATURE),
    (qkv.reference.attention_varlen_backward, VARLEN_SIGNATURE),
]


def base() -> dict[str, Any]:
    """A call that is right, in the order of the arguments."""
    rng = np.random.default_rng(8)
    shapes = {"grad_out": (2, 4, 3, 6), "q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6)}
    arrays = {name: rng.standard_normal(shape).astype(F) for name, shape in shapes.items()}
    out, lse = qkv.attention(arrays["q"], arrays["k"], arrays["v"], return_lse=True)
    return {**arrays, "out": out, "lse": lse}


def call(**changes: Any) -> Any:
    return qkv.attention_backward(**{**base(), **changes})


@pytest.mark.parametrize(("function", "signature"), FUNCTIONS)
def test_signature(function: Any, signature: str) -> None:
    assert bare_signature(function) == signature
    assert function.__name__ == function.__qualname__
    assert pickle.loads(pickle.dumps(function)) is function
    assert all(p.annotation is not inspect.Parameter.empty for p in inspect.signature(function).parameters.values())


def test_defaults_of_the_signature_are_those_of_a_call() -> None:
    parameters = inspect.signature(qkv.attention_backward).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    for actual, expected in zip(call(**defaults)[:3], call()[:3], strict=True):
        assert_same_bits(actual, expected)


def test_gradients_are_named_in_order() -> None:
    gradients = call()
    assert type(gradients) is qkv.Gradients
    assert gradients._fields == ("q", "k", "v", "bias", "sinks")
    assert gradients.bias is gradients.sinks is None
    assert [gradient.shape for gradient in gradients[:3]] == [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)]


@pytest.mark.parametrize(
    "need",
    [("q", "v"), ["q", "v"], {"q", "v"}, frozenset("qv"), ("v", "q", "v")],
    ids=["tuple", "list", "set", "frozenset", "repeated"],  # a set is printed in another order by every process
)
def test_forms_of_need(need: Any) -> None:
    gradients = call(need=need)
    assert gradients.k is None
    assert_same_bits(gradients.q, call().q)
    assert_same_bits(gradients.v, call().v)


@needs_torch
def test_tensors() -> None:
    arrays = base()
    bias, sinks = np.ones((3, 5), F), np.ones(4, F)
    arrays["out"], arrays["lse"] = qkv.attention(
        arrays["q"], arrays["k"], arrays["v"], bias=bias, sinks=sinks, return_lse=True
    )
    arrays |= {"bias": bias, "sinks": sinks, "grad_lse": arrays["lse"], "grad_entropy": arrays["lse"]}
    need = ("q", "k", "v", "bias", "sinks")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for actual, expected in zip(
        qkv.attention_backward(**tensors, need=need), qkv.attention_backward(**arrays, need=need), strict=True
    ):
        assert type(actual) is torch.Tensor
        assert_same_bits(actual.numpy(), expected)
    half = {name: tensors[name].bfloat16() for name in ("grad_out", "q", "k", "v", "out")}
    gradients = qkv.attention_backward(**half, lse=tensors["lse"])
    assert [gradient.dtype for gradient in gradients[:3]] == [torch.bfloat16] * 3
    with pytest.raises(TypeError, match=r"^grad_out: a NumPy array, but q is a PyTorch tensor; all arrays of a call"):
        qkv.attention_backward(**{**tensors, "grad_out": arrays["grad_out"]})


@needs_torch
def test_a_graph_is_not_lost() -> None:
    """Second derivatives: gradients of gradients would be lost."""
    tensors = {name: torch.from_numpy(array) for name, array in base().items()}
    for name in tensors:
        changed = {**tensors, name: tensors[name].clone().requires_grad_()}
        with pytest.raises(qkv.ValueError, match=rf"^{name}: requires grad, and its gradient would be lost"):
            qkv.attention_backward(**changed)
        with torch.no_grad():
            assert_same_bits(qkv.attention_backward(**changed).q.numpy(), qkv.attention_backward(**tensors).q.numpy())


def test_objects_with_dlpack() -> None:
    """They get NumPy arrays, which come back as out and lse."""
    arrays, expected = base(), call()
    wrapped = {name: DLPackOnly(array) for name, array in arrays.items()}
    for some in (wrapped, {**wrapped, **{name: arrays[name] for name in ("out", "lse", "grad_out")}}):
        gradients = qkv.attention_backward(**some)
        assert type(gradients.q) is np.ndarray
        for actual, one in zip(gradients[:3], expected[:3], strict=True):
            assert_same_bits(actual, one)


ERRORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"grad_out": np.ones((2, 4, 3, 5), F)}, qkv.ShapeError,
     "grad_out: expected [batch, num_heads, q_len, value_dim] = [2, 4, 3, 6], got [2, 4, 3, 5]"),
    ({"out": np.ones((2, 4, 6), F)}, qkv.ShapeError, "out: expected [batch, num_heads, q_len, value_dim] = [2, 4"),
    ({"lse": np.ones((2, 4, 5), F)}, qkv.ShapeError, "lse: expected [batch, num_heads, q_len] = [2, 4, 3], got [2"),
    ({"lse": np.ones((2, 4, 3, 1), F)}, qkv.ShapeError, "lse: "),
    ({"grad_lse": np.ones((2, 4), F)}, qkv.ShapeError, "grad_lse: expected [batch, num_heads, q_len] = [2, 4, 3]"),
    ({"grad_entropy": np.ones((2, 1, 3), F)}, qkv.ShapeError, "grad_entropy: expected [batch, num_heads, q_len]"),
    ({"k": np.ones((2, 3, 5, 8), F)}, qkv.ShapeError, "k: num_kv_heads 3 in [2, 3, 5, 8] does not divide num_heads 4"),
    ({"q": np.ones((1,) * 5, F)}, qkv.ShapeError, "q: shape [1, 1, 1, 1, 1], expected 1 to 4 axes"),
    ({"grad_out": np.ones((2, 4, 3, 6))}, qkv.DtypeError, "grad_out: expected float32 as in q, got float64"),
    ({"out": np.ones((2, 4, 3, 6), np.float16)}, qkv.DtypeError, "out: expected float32 as in q, got float16"),
    ({"lse": np.ones((2, 4, 3))}, qkv.DtypeError, "lse: expected float32, got float64"),
    ({"grad_lse": np.ones((2, 4, 3), np.float16)}, qkv.DtypeError, "grad_lse: expected float32, got float16"),
    ({"lse": np.ones((2, 4, 3), ">f4")}, qkv.DtypeError, "lse: dtype float32 with swapped bytes is not supported"),
    ({"q": np.ones((2, 4, 3, 8), np.int64)}, qkv.DtypeError, "q: dtype int64 is not supported"),
    ({"need": ("q", "w")}, qkv.ValueError, 'need: expected "q", "k", "v", "bias" or "sinks", got "w"'),
    ({"need": ("",)}, qkv.ValueError, 'need: expected "q", "k", "v", "bias" or "sinks", got ""'),
    ({"need": ("\ud800",)}, qkv.ValueError, "need: expected "),
    ({"need": ("q", "bias")}, qkv.ValueError, 'need: "bias" is asked for, but bias= is not given'),
    ({"need": ("sinks",)}, qkv.ValueError, 'need: "sinks" is asked for, but sinks= is not given'),
    ({"scale": float("nan")}, qkv.ValueError, "scale: expected a finite number, got nan"),
    ({"softcap": -1.0}, qkv.ValueError, "softcap: expected a positive finite number"),
    ({"kv_lens": [1, 6]}, qkv.ValueError, "kv_lens: expected 0 to kv_len = 5, got 6 for batch 1"),
    ({"dropout": 1.5}, qkv.ValueError, "dropout: expected a probability"),
    ({"need": "qk"}, TypeError, "need: expected a tuple of names, got str 'qk'"),
    ({"need": None}, TypeError, "need: expected a tuple of names, got NoneType"),
    ({"need": ("q", 1)}, TypeError, 'need: expected "q", "k", "v", "bias" or "sinks" in the sequence, got int 1'),
    ({"grad_out": None}, TypeError, "grad_out: expected a NumPy array, a PyTorch tensor or an object with __dlpack__"),
    ({"lse": [0.0]}, TypeError, "lse: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got list"),
    ({"v": None}, TypeError, "v: expected a NumPy array"),
    ({"return_lse": True}, TypeError, "attention_backward() got an unexpected keyword argument 'return_lse'"),
    ({"cauzal": True}, TypeError, "attention_backward() got an unexpected keyword argument 'cauzal'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "text"), ERRORS, ids=[text for _, _, text in ERRORS])
def test_errors(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        call(**changes)


def test_forward_has_no_options_of_backward() -> None:
    arrays = base()
    for name in ("need", "grad_lse", "grad_entropy"):
        with pytest.raises(TypeError, match=rf"^attention\(\) got an unexpected keyword argument '{name}'$"):
            qkv.attention(arrays["q"], arrays["k"], arrays["v"], **{name: None})


Q_LENGTHS, KV_LENGTHS = [3, 0, 40, 2, 17], [5, 2, 40, 0, 90]


def ragged(sinks: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a call, and its lengths."""
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal(shape).astype(F) for shape in ((62, 4, 16), (137, 2, 16), (137, 2, 12)))
    bounds = {
        f"cu_seqlens_{name}": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        for name, lengths in (("q", Q_LENGTHS), ("k", KV_LENGTHS))
    }
    out, lse = qkv.attention_varlen(q, k, v, **bounds, causal=True, sinks=sinks, return_lse=True)
    grad_out = rng.standard_normal(out.shape).astype(F)
    return {"grad_out": grad_out, "q": q, "k": k, "v": v, "out": out, "lse": lse}, bounds


@pytest.mark.parametrize("axes", ["H", "SH"])
def test_segments_have_the_bits_of_calls_of_their_own(axes: str, target: str) -> None:
    sinks = np.random.default_rng(1).standard_normal((5, 4)[-len(axes) :]).astype(F)
    arrays, bounds = ragged(sinks)
    arrays["grad_lse"] = np.random.default_rng(2).standard_normal((4, 62)).astype(F)
    whole = qkv.attention_varlen_backward(**arrays, **bounds, causal=True, sinks=sinks, need=("q", "k", "v", "sinks"))
    of_sinks = np.zeros((5, 4))
    for s in range(5):
        rows = slice(*bounds["cu_seqlens_q"][s : s + 2])
        keys = slice(*bounds["cu_seqlens_k"][s : s + 2])
        own = {name: arrays[name][rows].swapaxes(0, 1) for name in ("grad_out", "q", "out")}
        own |= {name: arrays[name][keys].swapaxes(0, 1) for name in ("k", "v")}
        own |= {name: arrays[name][:, rows] for name in ("lse", "grad_lse")}
        own_sinks = sinks if axes == "H" else sinks[s]
        alone = qkv.attention_backward(**own, causal=True, sinks=own_sinks, need=("q", "k", "v", "sinks"))
        assert_same_bits(whole.q[rows].swapaxes(0, 1), alone.q)
        assert_same_bits(whole.k[keys].swapaxes(0, 1), alone.k)
        assert_same_bits(whole.v[keys].swapaxes(0, 1), alone.v)
        of_sinks[s] = alone.sinks
    expected = of_sinks.sum(0) if axes == "H" else of_sinks
    assert_close(whole.sinks, expected, size=float(np.abs(of_sinks).max()))


def test_ragged_reference() -> None:
    arrays, bounds = ragged()
    actual = qkv.attention_varlen_backward(**arrays, **bounds, causal=True)
    expected = qkv.reference.attention_varlen_backward(**arrays, **bounds, causal=True)
    for one, other in zip(actual[:3], expected[:3], strict=True):
        assert_close(one, other, coefficient=64, size=float(np.abs(other).max()))


@pytest.mark.parametrize(("lengths", "segments"), [([0, 3, 3], 2), ([0, 0, 3, 3], 3), ([0], 0)], ids=str)
def test_segments_without_rows_and_keys_have_no_gradient(lengths: list[int], segments: int, target: str) -> None:
    total = lengths[-1]
    q = k = v = grad_out = np.ones((total, 4, 8), F)
    sinks = np.full((segments, 4), 0.5, F)
    out, lse = qkv.attention_varlen(q, k, v, lengths, lengths, sinks=sinks, return_lse=True)
    for _ in range(3):  # the memory of a result may hold zeros by chance
        rubbish = [np.full((segments, 4), np.nan, F) for _ in range(20)]
        del rubbish
        gradients = qkv.attention_varlen_backward(
            grad_out, q, k, v, out, lse, lengths, lengths, sinks=sinks, need=("sinks",)
        )
        empty = np.diff(lengths) == 0
        assert not gradients.sinks[empty].any()
        assert np.isfinite(gradients.sinks).all()


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"cu_seqlens_q": [0, 3]}, qkv.ValueError, "cu_seqlens_q: expected to end with total_q = 62, got 3"),
        ({"lse": np.ones((62, 4), F)}, qkv.ShapeError, "lse: expected [num_heads, total_q] = [4, 62], got [62, 4]"),
        ({"grad_out": np.ones((4, 62, 12), F)}, qkv.ShapeError, "grad_out: expected [total_q, num_heads, value_dim]"),
        ({"q": np.ones((1, 62, 4, 16), F)}, qkv.ShapeError, "q: shape [1, 62, 4, 16], expected 3 axes"),
        ({"mask": np.ones((62, 137), bool)}, qkv.ValueError, "mask: a ragged batch takes none"),
        ({"bias": np.ones((62, 137), F)}, qkv.ValueError, "bias: a ragged batch takes none"),
        ({"kv_lens": [1, 2, 3, 0, 4]}, qkv.ValueError, "kv_lens: a ragged batch takes none: cu_seqlens_k"),
        ({"need": ["bias"]}, qkv.ValueError, 'need: "bias" is asked for, but bias= is not given'),
        ({"out_": 1}, TypeError, "attention_varlen_backward() got an unexpected keyword argument 'out_'"),
    ],
)  # fmt: skip
def test_ragged_errors(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    arrays, bounds = ragged()
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        qkv.attention_varlen_backward(**{**arrays, **bounds, **changes})
