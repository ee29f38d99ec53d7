"""qkv.torch.attention and attention_varlen: gradients with every option, what is returned, what is recorded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import oracle
import pytest
from option_cases import OPTIONS, B, D, H, N, S, filled
from support import optional
from torch_support import close, gradients, needs_dropout, rows, same

import qkv

torch: Any = optional("torch")
if torch:
    import qkv.torch

pytestmark = pytest.mark.needs("torch")

F64 = np.float64


def inputs(kv_heads: int = 2, value_dim: int = 6) -> list[Any]:
    return [rows(B, H, N, D), rows(B, kv_heads, S, D, seed=1), rows(B, kv_heads, S, value_dim, seed=2)]


def tensors(options: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The options with tensors for arrays, and those that have a gradient."""
    made = {n: torch.from_numpy(np.array(v)) if isinstance(v, np.ndarray) else v for n, v in options.items()}
    learned = [made[name].requires_grad_() for name in ("bias", "sinks") if name in made]
    return made, learned


def expected(q: Any, k: Any, v: Any, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    result = oracle.attention(q, k, v, **options)
    return result.out, torch.where(result.lse.isfinite(), result.lse, 0.0), result.stats["entropy"]


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, rng: np.random.Generator) -> None:
    operands = inputs()
    options, learned = tensors(filled(OPTIONS[name], F64, rng))
    leaves = [*operands, *learned]
    out, lse, stats = qkv.torch.attention(*operands, **options, return_lse=True, return_stats=True)
    wanted = expected(*operands, options)
    found = (out, torch.where(lse.isfinite(), lse, 0.0), stats.entropy)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)
    for one, other in zip(gradients(found, leaves), gradients(wanted, leaves), strict=True):
        close(one, other)
    # and of each by itself: the others have no gradient then
    for one, other in zip(found, wanted, strict=True):
        for a, b in zip(gradients(one, leaves), gradients(other, leaves), strict=True):
            close(a, b)


def test_each_gradient_by_itself(rng: np.random.Generator) -> None:
    options = filled({"bias": "BHNS", "sinks": "H"}, F64, rng)
    for name in ("q", "k", "v", "bias", "sinks"):
        arguments = dict(zip("qkv", (x.detach() for x in inputs()), strict=True))
        arguments |= {n: torch.from_numpy(v) for n, v in options.items()}
        leaf = arguments[name].requires_grad_()
        rest = {n: arguments[n] for n in ("bias", "sinks")}
        operands = [arguments[n] for n in "qkv"]
        same(
            lambda o=operands, r=rest: qkv.torch.attention(*o, **r),
            lambda o=operands, r=rest: oracle.attention(*o, **r).out,
            [leaf],
        )


def test_numbers_per_batch_as_tensors_and_ints() -> None:
    q, k, v = inputs()
    by_ints = qkv.torch.attention(q, k, v, causal=True, query_offset=[1, 6], kv_lens=[4, 9])
    as_tensors = {"query_offset": torch.tensor([1, 6]), "kv_lens": torch.tensor([4, 9], dtype=torch.int32)}
    assert torch.equal(by_ints, qkv.torch.attention(q, k, v, causal=True, **as_tensors))
    assert torch.equal(by_ints, qkv.attention(*(x.detach() for x in (q, k, v)), causal=True, **as_tensors))
    one = qkv.torch.attention(q, k, v, kv_lens=6)
    assert torch.equal(one, qkv.torch.attention(q, k, v, kv_lens=[6, 6]))
    with pytest.raises(TypeError, match="expected ints or an int tensor, got float"):
        qkv.torch.attention(q, k, v, kv_lens=[1.5, 2])


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_fewer_axes(rank: int, kv_heads: int) -> None:
    q, k, v = (x.detach()[0, 0] if rank < 3 else x.detach()[0] for x in inputs(kv_heads))
    q = q[0] if rank == 1 else q
    full = [x[(None,) * (4 - x.dim())] for x in (q, k, v)]
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    whole = [x.clone().requires_grad_() for x in full]
    out, lse = qkv.torch.attention(*leaves, return_lse=True)
    wide, wide_lse = qkv.torch.attention(*whole, return_lse=True)
    assert (out.dim(), lse.dim()) == (rank, rank - 1)
    assert torch.equal(out.reshape(wide.shape), wide)
    assert torch.equal(lse.reshape(wide_lse.shape), wide_lse)
    for one, other in zip(gradients(out, leaves), gradients(wide, whole), strict=True):
        assert torch.equal(one.reshape(other.shape), other)


def test_everything_that_can_be_returned() -> None:
    q, k, v = inputs()
    options: dict[str, Any] = {
        "return_lse": True,
        "return_weights": qkv.Select(heads=[2, 0], rows=[1]),
        "return_logits": "masked",
        "return_stats": True,
        "stats_keys": [0, 3],
        "causal": True,
    }
    results = qkv.torch.attention(q, k, v, **options)
    plain = qkv.attention(*(x.detach() for x in (q, k, v)), **options)
    assert len(results) == len(plain) == 5
    for one, other in zip([*results[:4], *results[4]], [*plain[:4], *plain[4]], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    learned = [results[0], results[1], results[4].entropy]
    assert all(x.requires_grad for x in learned)
    assert not any(x.requires_grad for x in (*results[2:4], *(x for x in results[4] if x is not learned[2])))
    assert isinstance(qkv.torch.attention(q, k, v), torch.Tensor)
    for which in ({"return_weights": True}, {"return_logits": "scaled"}, {"return_stats": True}, {"return_lse": True}):
        assert len(qkv.torch.attention(q, k, v, **which)) == 2
    assert not qkv.torch.attention(q, k, v, return_weights=True)[1].requires_grad
    with pytest.raises(qkv.ValueError, match="stats_keys: given without return_stats"):
        qkv.torch.attention(q, k, v, stats_keys=[1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    wide = inputs()
    narrow = [x.detach().to(getattr(torch, dtype)).requires_grad_() for x in wide]
    exact = [x.detach().double().requires_grad_() for x in narrow]
    out, lse = qkv.torch.attention(*narrow, causal=True, return_lse=True)
    true = oracle.attention(*exact, causal=True)
    assert (out.dtype, lse.dtype) == (narrow[0].dtype, torch.float32)
    eps = torch.finfo(narrow[0].dtype).eps
    close(out.double(), true.out, 8 * eps)
    found = torch.autograd.grad(out.sum(), narrow)
    for one, other in zip(found, torch.autograd.grad(true.out.sum(), exact), strict=True):
        assert one.dtype == narrow[0].dtype
        close(one.double(), other, 30 * eps)


def test_result_keeps_the_order_of_memory() -> None:
    """Heads that were split from [batch, length, heads, dim] are joined without a copy."""
    q = rows(2, 5, 4, 8).transpose(1, 2)
    for how in (torch.enable_grad(), torch.no_grad()):
        with how:
            for out in (qkv.torch.attention(q, q, q), qkv.torch.scaled_dot_product_attention(q, q, q)):
                assert out.transpose(1, 2).is_contiguous()
    dense = q.detach().contiguous()
    assert torch.equal(qkv.torch.attention(q, q, q), qkv.attention(dense, dense, dense))


CU_Q, CU_K = [0, 2, 2, 7], [0, 4, 6, 9]


@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "window", "sinks", "alibi", "causal_offset_per_batch"])
def test_ragged(name: str, rng: np.random.Generator) -> None:
    chosen = dict(OPTIONS[name])
    if "query_offset" in chosen:
        chosen["query_offset"] = [1, 0, 2]
    options, learned = tensors(filled(chosen, F64, rng))
    q, k, v = rows(7, H, D), rows(9, 2, D, seed=1), rows(9, 2, 6, seed=2)
    out, lse, stats = qkv.torch.attention_varlen(q, k, v, CU_Q, CU_K, **options, return_lse=True, return_stats=True)
    parts = []
    for s, (q0, q1, k0, k1) in enumerate(zip(CU_Q, CU_Q[1:], CU_K, CU_K[1:], strict=False)):
        if q0 == q1:
            continue
        one = dict(options)
        if "query_offset" in one:
            one["query_offset"] = one["query_offset"][s]
        q_s, k_s, v_s = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        parts.append(expected(q_s, k_s, v_s, one))
    wanted = [torch.cat([part[i][0] for part in parts], 1) for i in range(3)]
    wanted[0] = wanted[0].transpose(0, 1)
    found = (out, torch.where(lse.isfinite(), lse, 0.0), stats.entropy)
    for a, b in zip(found, wanted, strict=True):
        close(a, b)
    leaves = [q, k, v, *learned]
    for a, b in zip(gradients(found, leaves), gradients(wanted, leaves), strict=True):
        close(a, b)
    as_tensors = qkv.torch.attention_varlen(q, k, v, torch.tensor(CU_Q), torch.tensor(CU_K).int(), **options)
    assert torch.equal(as_tensors, out)
    assert torch.equal(qkv.attention_varlen(q, k, v, CU_Q, CU_K, **options), out)
    assert qkv.attention_varlen(q, k, v, CU_Q, CU_K, **options).requires_grad


# --- qkv.attention on tensors that require grad -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_qkv_attention_is_recorded(name: str, rng: np.random.Generator) -> None:
    arguments = dict(zip("qkv", (x.detach() for x in inputs()), strict=True))
    arguments |= {n: torch.from_numpy(x) for n, x in filled({"bias": "BHNS", "sinks": "H"}, F64, rng).items()}
    leaf = arguments[name].requires_grad_()
    out = qkv.attention(**arguments, causal=True)
    assert out.requires_grad
    same(lambda: qkv.attention(**arguments), lambda: oracle.attention(**arguments).out, [leaf])
    with torch.no_grad():
        plain = qkv.attention(**arguments, causal=True)
    assert not plain.requires_grad
    assert torch.equal(plain, out)


def test_qkv_attention_with_out_or_a_cache_is_not_recorded() -> None:
    q, k, v = (x.float() for x in inputs(value_dim=8))
    out = torch.empty(B, H, N, 8)
    with pytest.raises(qkv.ValueError, match=r"^out: given while gradients are recorded"):
        qkv.attention(q, k, v, out=out)
    with torch.no_grad():
        assert qkv.attention(q, k, v, out=out) is out
    cache = qkv.KVCache(B, 2, D, S, dtype=torch.float32)
    cache.append(k.detach(), v.detach())
    with pytest.raises(qkv.ValueError, match=r"^q: requires grad"):
        qkv.attention(q, cache)


def test_importing_qkv_does_not_import_torch() -> None:
    code = "import sys, qkv; assert 'torch' not in sys.modules; qkv.torch; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; sys.modules['torch'] = None; import qkv; qkv.torch"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: qkv.torch needs PyTorch" in failed.stderr


# --- dropout ------------------------------------------------------------------------------------------------------


@needs_dropout
def test_dropout_is_reproduced_by_manual_seed() -> None:
    q, k, v = inputs()

    def drop(**options: Any) -> Any:
        return qkv.torch.attention(q, k, v, dropout=0.5, **options)

    torch.manual_seed(7)
    first, second = drop(), drop()
    torch.manual_seed(7)
    assert torch.equal(drop(), first)
    assert not torch.equal(first, second)
    assert torch.equal(drop(seed=3), drop(seed=torch.tensor(3)))
    assert torch.equal(drop(seed=3), qkv.attention(*(x.detach() for x in (q, k, v)), dropout=0.5, seed=3))
    torch.manual_seed(7)
    ours = qkv.torch.scaled_dot_product_attention(q, k, v, dropout_p=0.5, enable_gqa=True)
    assert torch.isfinite(ours).all()
    zero = qkv.torch.scaled_dot_product_attention(q, k, v, dropout_p=1.0, enable_gqa=True)
    assert not zero.any()


@needs_dropout
def test_gradients_with_dropout() -> None:
    """The mask of a seed is read off a call whose values are an identity; the oracle is then given it."""
    q, k, v = (x.float().detach().double().requires_grad_() for x in inputs(kv_heads=H))
    identity = torch.eye(S, dtype=torch.double).expand(B, H, S, S)
    p = 0.4
    with torch.no_grad():
        dropped = qkv.torch.attention(q, k, identity, dropout=p, seed=11)
    kept = (dropped != 0).double() / (1 - p)
    assert 0.3 < (kept > 0).double().mean() < 0.9
    same(
        lambda: qkv.torch.attention(q, k, v, dropout=p, seed=11),
        lambda: (oracle.attention(q, k, v).weights * kept) @ v,
        [q, k, v],
    )
    assert torch.autograd.gradcheck(lambda *x: qkv.torch.attention(*x, dropout=p, seed=11), [q, k, v])


def test_seeds() -> None:
    q, k, v = inputs()
    for seed in (0, 2**63 - 1, 2**63, 2**64 - 1):
        assert torch.equal(qkv.torch.attention(q, k, v, seed=seed), qkv.torch.attention(q, k, v))
    for seed, error in ((-1, ValueError), (2**64, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=r"^seed: expected"):
            qkv.torch.attention(q, k, v, seed=seed)


@needs_dropout
def test_seeds_are_those_of_the_library() -> None:
    q, k, v = (x.detach() for x in inputs())
    for seed in (0, 2**63 - 1, 2**63, 2**64 - 1):
        ours = qkv.torch.attention(q, k, v, dropout=0.5, seed=seed)
        assert torch.equal(ours, qkv.attention(q, k, v, dropout=0.5, seed=seed))


def test_dropout_needs_a_probability() -> None:
    q, k, v = inputs()
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="dropout"):
            qkv.torch.attention(q, k, v, dropout=p)
        with pytest.raises(ValueError, match="dropout_p"):
            qkv.torch.scaled_dot_product_attention(q, k, v, dropout_p=p, enable_gqa=True)
