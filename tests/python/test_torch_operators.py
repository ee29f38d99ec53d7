"""The registered operators: PyTorch's own checks of them, gradcheck, torch.compile, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from support import optional
from torch_support import SINGLE, close, gradients, needs_dropout, rows

import qkv

torch: Any = optional("torch")
if torch:
    import qkv.torch
    from qkv.torch import _ops

pytestmark = pytest.mark.needs("torch")


def operands(ragged: bool, dtype: Any = None) -> list[Any]:
    if ragged:
        q, k, v = rows(5, 4, 8, dtype=dtype), rows(7, 2, 8, seed=1, dtype=dtype), rows(7, 2, 6, seed=2, dtype=dtype)
        return [q, k, v, torch.tensor([0, 2, 5]), torch.tensor([0, 4, 7])]
    return [rows(2, 4, 5, 8, dtype=dtype), rows(2, 2, 7, 8, seed=1, dtype=dtype), rows(2, 2, 7, 6, seed=2, dtype=dtype)]


def options(which: str, ragged: bool) -> list[Any]:
    """The positional options of an operator."""
    tensors: list[Any] = [None] * 7
    numbers: list[Any] = [False, None, None, None, None, 0.0, 0.0]
    if which == "all":
        tensors[2], tensors[3] = rows(4, seed=3), rows(4, seed=4, grad=False)
        tensors[5] = torch.tensor([1, 2])
        if not ragged:
            tensors[0] = rows(2, 1, 5, 7, seed=5, grad=False) > -1
            tensors[1] = rows(4, 1, 7, seed=6)
            tensors[4] = torch.tensor([7, 5])
        numbers = [True, None, 4, None, 0.3, 2.0, 0.0]
    return tensors + numbers


def wanted(ragged: bool) -> list[Any]:
    return [True, [1, 2], None, False, None, None] if ragged else [True, [1, 2], "masked", True, [2, 0], None]


@pytest.mark.parametrize("which", ["plain", "all"])
@pytest.mark.parametrize("ragged", [False, True])
def test_opcheck(ragged: bool, which: str) -> None:
    operators = _ops.ragged if ragged else _ops.dense
    arguments = (*operands(ragged), *options(which, ragged))
    torch.library.opcheck(operators.attention, arguments)
    torch.library.opcheck(operators.observed, (*arguments, *wanted(ragged)))
    out, lse = (x.detach() for x in operators.attention(*arguments))
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    need = [True, False, True, which == "all" and not ragged, which == "all"]
    for grad_lse in (None, torch.ones_like(lse)):
        back = (torch.ones_like(out), grad_lse, None, out, lse, *detached, need)
        torch.library.opcheck(operators.backward, back)


@pytest.mark.parametrize("ragged", [False, True])
def test_fake_results_are_like_the_real_ones(ragged: bool) -> None:
    """opcheck compares shapes and strides of what it is given; these are orders of memory and dtypes beyond it."""
    operators = _ops.ragged if ragged else _ops.dense
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        given = operands(ragged, dtype)
        if not ragged:
            given[0] = rows(2, 5, 4, 8, dtype=dtype).transpose(1, 2)
            given[2] = rows(2, 2, 7, 8, seed=2, dtype=dtype)
        arguments = (*given, *options("plain", ragged))
        meta = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments]
        for operator, more in ((operators.attention, []), (operators.observed, wanted(ragged))):
            for real, fake in zip(operator(*arguments, *more), operator(*meta, *more), strict=True):
                assert (real.shape, real.stride(), real.dtype) == (fake.shape, fake.stride(), fake.dtype)


@pytest.mark.parametrize("which", ["plain", "all"])
@pytest.mark.parametrize("ragged", [False, True])
def test_gradcheck(ragged: bool, which: str) -> None:
    operators = _ops.ragged if ragged else _ops.dense
    arguments = [*operands(ragged), *options(which, ragged)]

    def results(*args: Any) -> Any:
        return operators.observed(*args, *wanted(ragged))[:3]

    assert torch.autograd.gradcheck(results, arguments)
    assert torch.autograd.gradcheck(lambda *args: operators.attention(*args), arguments)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradcheck_of_sdpa(is_causal: bool) -> None:
    q, k, v = operands(False)
    bias = rows(5, 7, seed=7)
    assert torch.autograd.gradcheck(
        lambda *x: qkv.torch.scaled_dot_product_attention(*x, is_causal=is_causal, enable_gqa=True), [q, k, v, bias]
    )


def test_a_part_of_the_gradients_costs_no_more_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = []
    real = _ops.dense.backward

    def recorded(*args: Any) -> Any:
        needs.append(args[-1])
        return real(*args)

    monkeypatch.setattr(_ops.dense, "backward", recorded)
    q, k, v = (x.detach() for x in operands(False))
    bias = rows(5, 7, grad=False)
    for leaf in (q, v, bias):
        leaf.requires_grad_()
        qkv.torch.attention(q, k, v, bias=bias).sum().backward()
        leaf.requires_grad_(False)
    assert needs == [
        [True, False, False, False, False],
        [False, False, True, False, False],
        [False, False, False, True, False],
    ]


def test_second_derivatives_are_refused() -> None:
    q, k, v = operands(False)
    out = qkv.torch.attention(q, k, v)
    [first] = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    assert first.requires_grad
    with pytest.raises(NotImplementedError, match="second derivative of attention"):
        torch.autograd.grad(first.sum(), q)
    out.sum().backward()
    assert q.grad.isfinite().all()


def test_forward_derivatives_and_transforms_are_refused() -> None:
    x = rows(2, 3, 4, grad=False)
    forward_ad = torch.autograd.forward_ad
    for function in (qkv.torch.attention, qkv.torch.scaled_dot_product_attention):

        def attend(x: Any, function: Any = function) -> Any:
            return function(x, x, x)

        for transform in (
            torch.func.grad(lambda x: attend(x).sum()),
            torch.func.jacfwd(attend),
            torch.func.jacrev(attend),
        ):
            with pytest.raises(ValueError, match=r"inside torch.func.grad, jvp"):
                transform(x)
        with forward_ad.dual_level():
            with pytest.raises(qkv.ValueError, match="q: a dual tensor"):
                attend(forward_ad.make_dual(x, x))
            with pytest.raises(NotImplementedError, match="jvp"):
                attend(forward_ad.make_dual(x.clone().requires_grad_(), x))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_calls_it_for_each() -> None:
    x = rows(3, 2, 5, 4, grad=False)
    for function in (qkv.torch.attention, qkv.torch.scaled_dot_product_attention):
        assert torch.equal(
            torch.func.vmap(lambda x, f=function: f(x, x, x))(x), torch.stack([function(e, e, e) for e in x])
        )


def test_slopes_that_require_grad_are_refused() -> None:
    q, k, v = operands(False)
    with pytest.raises(ValueError, match=r"alibi_slopes: requires grad, and slopes have none"):
        qkv.torch.attention(q, k, v, alibi_slopes=rows(4))
    with torch.no_grad():
        qkv.torch.attention(q, k, v, alibi_slopes=rows(4))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"q": 1}, TypeError, "^q: expected a torch.Tensor, got int"),
        ({"sinks": 1}, TypeError, "^sinks: expected a torch.Tensor, got int"),
        ({"k": "sparse"}, ValueError, "^k: a tensor of layout torch.sparse_coo"),
        ({"bias": "complex"}, TypeError, "^bias: torch.complex128"),
        ({"window": (1, -2)}, ValueError, "^window"),
        ({"window": 3}, TypeError, None),
        ({"softcap": -1.0}, ValueError, "^softcap"),
        ({"query_offset": [1, 2, 3]}, ValueError, "^query_offset"),
        ({"nothing": 1}, TypeError, "nothing"),
        ({"out": 1}, TypeError, "out"),
        ({"return_logits": "all"}, ValueError, "^return_logits"),
    ],
)
def test_errors(change: dict[str, Any], error: type, text: str | None) -> None:
    q, k, v = operands(False)
    special = {"sparse": k.detach().to_sparse(), "complex": torch.zeros(5, 7, dtype=torch.complex128)}
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v}
    arguments |= {n: special.get(x, x) if isinstance(x, str) else x for n, x in change.items()}
    with pytest.raises(error, match=text):
        qkv.torch.attention(**arguments)


def test_fake_mode_and_dispatch_modes_see_the_operator() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    with FakeTensorMode():
        x = torch.ones(2, 3, 4)
        assert type(qkv.torch.scaled_dot_product_attention(x, x, x)).__name__ == "FakeTensor"

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = rows(2, 3, 4, grad=False)
    with Watch():
        qkv.torch.scaled_dot_product_attention(x, x, x)
    assert "qkv.attention.default" in seen


def test_export() -> None:
    class Attend(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return qkv.torch.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = rows(2, 3, 4, grad=False)
    program = torch.export.export(Attend(), (x,))
    assert any("qkv.attention" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(x), Attend()(x))


# --- torch.compile ------------------------------------------------------------------------------------------------


class Small(torch.nn.Module if torch else object):  # type: ignore[misc]
    """Every function of ours in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(16, 48)
        self.bias = torch.nn.Parameter(torch.zeros(4, 1, 1))
        self.sinks = torch.nn.Parameter(torch.zeros(4))
        self.layer = qkv.torch.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.project(x).chunk(3, -1))
        a = qkv.torch.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
        b, lse, stats = qkv.torch.attention(
            q, k, v, bias=self.bias, sinks=self.sinks, window=(2, 0), kv_lens=[3, 5], query_offset=0, return_lse=True,
            return_stats=True,
        )  # fmt: skip
        c = qkv.torch.attention_varlen(*(e[0].transpose(0, 1) for e in (q, k, v)), [0, 2, 5], [0, 2, 5], causal=True)
        d = self.layer(x, is_causal=True)
        return (a + b).square().mean() + 1e-2 * (lse.mean() + stats.entropy.mean()) + c.mean() + d.std()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(backend: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Small()
    parameters = list(model.parameters())
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for length in (5, 6):  # the second with dynamic shapes
        x = rows(2, length, 16, dtype=torch.float32)
        mask = rows(length, length, grad=False) > -1
        if length == 6:
            model.forward = lambda x, mask: (
                qkv.torch.scaled_dot_product_attention(x, x, x, mask).square().mean()
                + (sum(p.sum() for p in parameters))
            )
            compiled = torch.compile(model.forward, fullgraph=True, backend=backend, dynamic=True)
        expected, actual = model(x, mask), compiled(x, mask)
        close(actual.detach(), expected.detach(), SINGLE)
        for one, other in zip(
            gradients(actual, [x, *parameters], again=False), gradients(expected, [x, *parameters]), strict=True
        ):
            close(one, other, SINGLE)


@pytest.mark.slow
def test_compile_within_autocast() -> None:
    torch._dynamo.reset()
    x = rows(2, 4, 5, 8, dtype=torch.float32)
    attend = torch.compile(
        lambda x: qkv.torch.scaled_dot_product_attention(x, x, x), fullgraph=True, backend="aot_eager"
    )
    with torch.autocast("cpu"):
        out = attend(x)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.dtype == torch.float32


@needs_dropout
@pytest.mark.slow
def test_compile_with_dropout_draws_anew_each_time() -> None:
    torch._dynamo.reset()
    x = rows(2, 4, 5, 8, dtype=torch.float32)
    attend = torch.compile(
        lambda x: qkv.torch.scaled_dot_product_attention(x, x, x, dropout_p=0.5), fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(1)
    first, second = attend(x), attend(x)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(attend(x), first)
    first.sum().backward()
    assert x.grad.isfinite().all()
