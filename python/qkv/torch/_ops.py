"""The registered operators: ``torch.ops.qkv.attention`` and its kin, with fake implementations and autograd.

They are made with the low-level interface of torch.library, which costs a fraction of what custom_op does. Arguments
are all positional: autograd looks at no other. A dense and a ragged batch differ in the two cumulative lengths alone.

========================== ===============================================================================
attention                  (out, lse)
attention_observed         (out, lse, entropy) and what has no gradient: the other statistics, logits, weights
attention_varlen           (out, lse)
attention_varlen_observed  (out, lse, entropy) and the other statistics
attention_backward         gradients of q, k, v, bias and sinks; empty where not needed
attention_varlen_backward  the same
========================== ===============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from qkv import _core
from qkv._types import Select

__all__ = ["Operators", "dense", "ragged"]

_OPTIONS: Final = (
    "Tensor? mask, Tensor? bias, Tensor? sinks, Tensor? alibi_slopes, Tensor? kv_lens, Tensor? query_offsets, "
    "Tensor? seed, bool causal, SymInt? query_offset, SymInt? window_left, SymInt? window_right, float? scale, "
    "float softcap, float dropout"
)
_NUM_TENSOR_OPTIONS: Final = 7
_NUM_OPTIONS: Final = 14
_BIAS, _SINKS, _SLOPES = 1, 2, 3

#: What a call is observed for, after the options.
_WANTED: Final = "bool stats, SymInt[]? stats_keys, str? logits, bool weights, SymInt[]? heads, SymInt[]? rows"

_C: Final[Any] = torch._C
_library: Final[Any] = torch.library.Library("qkv", "FRAGMENT")


def _define(schema: str, compute: Any, fake: Any, autograd: tuple[Any, Any], autocast: Any = None) -> Any:
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    _library.impl(name, compute, "CPU")
    torch.library.register_fake(f"qkv::{name}", fake, lib=_library)
    operator = getattr(torch.ops.qkv, name).default
    _library.impl(name, _recording(operator, *autograd), "Autograd", with_keyset=True)
    if autocast is not None:
        _library.impl(name, autocast(operator), "AutocastCPU")
    return operator


def _recording(operator: Any, backward: Any, setup_context: Any) -> Any:
    """What torch.library.register_autograd makes, without its look at the schema of 20 arguments in each call.

    That would fill in what the dispatcher leaves out, arguments that equal their default: there is none with a default.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        *inputs, keyset = args
        result = below(keyset, *inputs)
        setup_context(ctx, inputs, result)
        return result

    def below(keyset: Any, *args: Any) -> Any:
        with _C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & _C._after_autograd_keyset, *args)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"QkvBackwardFor_{operator._opname}", (torch.autograd.Function,), members)

    def recorded(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and _C._any_requires_grad(*args):
            return function.apply(*args, keyset)
        return below(keyset, *args)

    return recorded


def _keep_nothing(*_: Any) -> None:
    pass


def _to_options(
    mask: Any,
    bias: Any,
    sinks: Any,
    alibi_slopes: Any,
    kv_lens: Any,
    query_offsets: Any,
    seed: Any,
    causal: bool,
    query_offset: int | None,
    window_left: int | None,
    window_right: int | None,
    scale: float | None,
    softcap: float,
    dropout: float,
) -> dict[str, Any]:
    """The keywords of `qkv.attention`; what has its default is left out, so that a call is short."""
    options: dict[str, Any] = {}
    if mask is not None:
        options["mask"] = mask
    if bias is not None:
        options["bias"] = bias
    if sinks is not None:
        options["sinks"] = sinks
    if alibi_slopes is not None:
        options["alibi_slopes"] = alibi_slopes
    if kv_lens is not None:
        options["kv_lens"] = kv_lens
    if causal:
        options["causal"] = True
    if query_offsets is not None or query_offset is not None:
        options["query_offset"] = query_offset if query_offsets is None else query_offsets
    if window_left is not None or window_right is not None:
        options["window"] = (window_left, window_right)
    if scale is not None:
        options["scale"] = scale
    if softcap:
        options["softcap"] = softcap
    if dropout:
        options["dropout"] = dropout
        if seed is not None:
            options["seed"] = int(seed) & 0xFFFF_FFFF_FFFF_FFFF
    return options


def _stats_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _new_out(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """In q's order of memory where the shapes agree: a model that splits heads can join them without a copy."""
    if q.shape[-1] == v.shape[-1]:
        return torch.empty_like(q)
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _lower(args: tuple[Any, ...], dtype: torch.dtype, indices: Sequence[int]) -> list[Any]:
    lowered = list(args)
    for index in indices:
        tensor = args[index]
        # What autocast itself takes for eligible.
        if tensor is not None and tensor.is_floating_point() and tensor.dtype not in (dtype, torch.float64):
            lowered[index] = tensor.to(dtype)
    return lowered


class Operators:
    """The operators of dense batches, or of ragged ones."""

    def __init__(self, ragged: bool) -> None:
        self.ragged = ragged
        self._lead = 5 if ragged else 3
        self._run: Callable[..., Any] = _core.attention_varlen if ragged else _core.attention
        self._run_back: Callable[..., Any] = _core.attention_varlen_backward if ragged else _core.attention_backward
        name = "attention_varlen" if ragged else "attention"
        operands = "Tensor q, Tensor k, Tensor v" + (", Tensor cu_seqlens_q, Tensor cu_seqlens_k" if ragged else "")
        forward = (self._backward, self._setup_context)
        self.backward: Any = _define(
            f"{name}_backward(Tensor grad_out, Tensor? grad_lse, Tensor? grad_entropy, Tensor out, Tensor lse, "
            f"{operands}, {_OPTIONS}, bool[] need) -> (Tensor q, Tensor k, Tensor v, Tensor bias, Tensor sinks)",
            self._compute_backward,
            self._fake_backward,
            (_refuse_second_derivative, _keep_nothing),
        )
        self.attention: Any = _define(
            f"{name}({operands}, {_OPTIONS}) -> (Tensor out, Tensor lse)",
            self._compute,
            self._fake,
            forward,
            self._autocast,
        )
        self.observed: Any = _define(
            f"{name}_observed({operands}, {_OPTIONS}, {_WANTED}) -> (Tensor out, Tensor lse, Tensor entropy, "
            "Tensor max_raw, Tensor max_logit, Tensor max_key, Tensor max_weight, Tensor key_weight, Tensor logits, "
            "Tensor weights)",
            self._compute_observed,
            self._fake_observed,
            forward,
            self._autocast,
        )

    def _autocast(self, operator: Any) -> Any:
        """What autocast lowers of PyTorch's own: q, k, v and a float mask. Sinks and slopes stay as they are."""
        keys = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU)
        indices = (0, 1, 2, self._lead + _BIAS)

        def lowered(*args: Any) -> Any:
            with _C._ExcludeDispatchKeyGuard(keys):
                return operator(*_lower(args, torch.get_autocast_dtype("cpu"), indices))

        return lowered

    def _compute(self, *args: Any) -> Any:
        lead = self._lead
        options = _to_options(*args[lead:])
        options["return_lse"] = True
        options["out"] = _new_out(args[0], args[2])
        return self._run(*args[:lead], options)

    def _row_shape(self, q: torch.Tensor) -> tuple[Any, ...]:
        return (q.shape[1], q.shape[0]) if self.ragged else tuple(q.shape[:-1])

    def _fake(self, q: Any, k: Any, v: Any, *_: Any) -> Any:
        return _new_out(q, v), q.new_empty(self._row_shape(q), dtype=_stats_dtype(q))

    def _compute_observed(self, *args: Any) -> Any:
        lead, end = self._lead, self._lead + _NUM_OPTIONS
        stats, stats_keys, logits, weights, heads, rows = args[end:]
        options = _to_options(*args[lead:end])
        options.update(return_lse=True, return_stats=stats, out=_new_out(args[0], args[2]))
        if stats_keys is not None:
            options["stats_keys"] = stats_keys
        if logits is not None:
            options["return_logits"] = logits
        if weights:
            options["return_weights"] = True if heads is None and rows is None else Select(heads, rows)
        out, lse, *rest = self._run(*args[:lead], options)
        none = [lse.new_empty(0) for _ in range(8)]
        none[3] = none[3].long()
        if stats:
            s = rest.pop()
            none[:6] = [s.entropy, s.max_raw, s.max_logit, s.max_key, s.max_weight, s.key_weight]
        if weights:
            none[7] = rest.pop()
        if logits is not None:
            none[6] = rest.pop()
        return out, lse, *none

    def _fake_observed(self, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        out, lse = self._fake(q, k, v)
        stats, _, logits, weights, heads, rows = rest[-6:]
        row = lse.shape if stats else (0,)
        statistics = [lse.new_empty(row, dtype=torch.int64 if i == 3 else lse.dtype) for i in range(6)]
        matrix = [*q.shape[:-1], k.shape[-2]]
        chosen = list(matrix)
        for place, choice in ((-3, heads), (-2, rows)):
            if choice is not None:
                chosen[place] = len(choice)
        return (
            out,
            lse,
            *statistics,
            lse.new_empty(matrix if logits is not None else (0,)),
            lse.new_empty(chosen if weights else (0,)),
        )

    def _compute_backward(self, grad_out: Any, grad_lse: Any, grad_entropy: Any, out: Any, lse: Any, *args: Any) -> Any:
        lead, need = self._lead, args[-1]
        options = _to_options(*args[lead:-1])
        if grad_lse is not None:
            options["grad_lse"] = grad_lse
        if grad_entropy is not None:
            options["grad_entropy"] = grad_entropy
        options["need"] = tuple(name for name, wanted in zip(_GRADIENTS, need, strict=True) if wanted)
        gradients = self._run_back(grad_out, *args[:3], out, lse, *args[3:lead], options)
        return tuple(grad_out.new_empty(0) if gradient is None else gradient for gradient in gradients)

    def _fake_backward(self, grad_out: Any, grad_lse: Any, grad_entropy: Any, out: Any, lse: Any, *args: Any) -> Any:
        of = (*args[:3], args[self._lead + _BIAS], args[self._lead + _SINKS])
        return tuple(
            tensor.new_empty(tensor.shape) if wanted else grad_out.new_empty(0)
            for tensor, wanted in zip(of, args[-1], strict=True)
        )

    def _setup_context(self, ctx: Any, inputs: list[Any], output: tuple[Any, ...]) -> None:
        tensors = self._lead + _NUM_TENSOR_OPTIONS
        slopes = inputs[self._lead + _SLOPES]
        if slopes is not None and slopes.requires_grad:
            raise ValueError("alibi_slopes: requires grad, and slopes have none; pass alibi_slopes.detach()")
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[0], output[1], *inputs[:tensors])
        ctx.numbers = inputs[tensors : self._lead + _NUM_OPTIONS]
        ctx.num_inputs = len(inputs)
        if len(output) > 2:
            first = 3 if inputs[self._lead + _NUM_OPTIONS] else 2  # an entropy that was not asked for is empty
            ctx.mark_non_differentiable(*output[first:])

    def _backward(self, ctx: Any, grad_out: Any, grad_lse: Any, grad_entropy: Any = None, *_: Any) -> Any:
        out, lse, *tensors = ctx.saved_tensors
        lead = self._lead
        places = (0, 1, 2, lead + _BIAS, lead + _SINKS)
        need = [ctx.needs_input_grad[place] for place in places]
        if grad_out is None:
            grad_out = out.new_zeros(()).expand(out.shape)
        gradients = self.backward(grad_out, grad_lse, grad_entropy, out, lse, *tensors, *ctx.numbers, need)
        answer: list[Any] = [None] * (ctx.num_inputs + 1)  # and of the key set
        for place, gradient, wanted in zip(places, gradients, need, strict=True):
            if wanted:
                answer[place] = gradient
        return tuple(answer)


_GRADIENTS: Final = ("q", "k", "v", "bias", "sinks")


def _refuse_second_derivative(ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "qkv: a second derivative of attention was asked for, and there is none; for losses on gradients use "
        "torch.nn.functional.scaled_dot_product_attention under torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


dense: Final = Operators(ragged=False)
ragged: Final = Operators(ragged=True)
