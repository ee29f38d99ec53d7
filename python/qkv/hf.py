"""Attention for Hugging Face transformers: models run on qkv after two lines.

    import qkv.hf
    qkv.hf.register()
    model = AutoModel.from_pretrained(path, attn_implementation="qkv")   # or model.set_attn_implementation("qkv")

``register`` adds the attention function and, under the same name, the mask function. Both are needed: transformers
hands no mask at all to an attention function whose name has no mask function, and the model then attends to padding.

What is kept of transformers' own "sdpa": the alignment of causal attention, when a mask may be left out, the layout of
the result, grouped heads. What differs: ``output_attentions=True`` gives the weights, softcap and sinks work, hidden
keys are absent (a NaN in the padding stays there), and what this version cannot do is refused, never skipped.
"""

from __future__ import annotations

from typing import Any, Final

try:
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
except ImportError as error:
    raise ImportError(
        f"qkv.hf needs PyTorch and Hugging Face transformers 5 or newer ({error}); "
        "install them with: pip install torch transformers"
    ) from error

import qkv
import qkv.torch

__all__ = ["attention_forward", "attention_mask", "register"]

# Parts of torch without types.
_compiler: Final[Any] = torch.compiler
_jit: Final[Any] = torch.jit


def _find_collector() -> Any:
    """What models record into while attentions are asked for; private to transformers, so it may be absent one day."""
    try:
        from transformers.utils import output_capturing
    except ImportError:
        return None
    return getattr(output_capturing, "_active_collector", None)


_collector: Final[Any] = _find_collector()

# Names that transformers gives a meaning of its own: built-in functions, prefixes, and anything with "flash" in it.
_RESERVED_NAMES: Final = frozenset({"eager", "sdpa", "flex_attention"})

# Arguments that change what attention computes and that the op has no counterpart for.
_UNSUPPORTED: Final = {
    "indices": "attention to chosen keys only",
    "block_indices": "attention to chosen blocks of keys only",
    "sinks": "one sink a token",
    "head_mask": "scaling whole heads",
    "layer_head_mask": "scaling whole heads",
    "score_mod": "a function of the logits",
}


def register(name: str = "qkv") -> None:
    """Makes ``attn_implementation=name`` known to transformers, for every model loaded before or after.

    Registering twice is harmless. Models that do not use transformers' attention interface (a few old vision models)
    say so themselves when the name is set.

    Raises:
        TypeError: a name that is no str.
        ValueError: a name that transformers reads a meaning into: its own functions, or with "flash", "|", "/" or ":".
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a str such as 'qkv', got {type(name).__name__}")
    if not name or name in _RESERVED_NAMES or "flash" in name or any(c in name for c in "|/:"):
        raise ValueError(f"name: {_cut(name)} means something else to transformers; choose another, such as 'qkv'")
    # Compiled models break their graph at attention and call the kernel as it is.
    AttentionInterface.register(name, _compiler.disable(attention_forward))
    AttentionMaskInterface.register(name, attention_mask)


def _cut(value: object) -> str:
    return f"{value!r:.60}"


def attention_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """The mask function: bool ``[batch, 1, q_len, kv_len]``, True = attend, or None where nothing needs hiding.

    It is transformers' own rule for "sdpa", under a name of ours: packed sequences, sliding and chunked windows,
    padding and static caches are in the mask. None means "all", or "causal" where the model is. A padding mask repeats
    its rows with stride 0, so it costs kv_len bytes a sequence; one that is causal and padded is q_len x kv_len bytes.
    A row with no True in it (a padding row on the left of a causal model) gives output 0 and weights 0.
    """
    mask: torch.Tensor | None = sdpa_mask(*args, **kwargs)
    return mask


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function that transformers calls, once a layer.

    Args:
        module: the attention layer; its ``is_causal`` counts where the argument is None.
        query: ``[batch, num_heads, q_len, head_dim]``, of any real dtype, on the CPU; any strides, as key and value.
        key: ``[batch, num_kv_heads, kv_len, head_dim]``, heads not repeated.
        value: ``[batch, num_kv_heads, kv_len, value_dim]``.
        attention_mask: bool (True = attend) or float (added to the logits), broadcast onto
            ``[batch, num_heads, q_len, kv_len]``; keys beyond kv_len are cut off. Without a mask, and for more than one
            query, a causal module attends from the top left: row i to keys 0..i.
        dropout: the share of weights to drop, 0 in evaluation; drawn from PyTorch's default generator.
        scaling: of the logits; default 1/sqrt(head_dim).
        is_causal: overrides the module's.
        softcap: c > 0 turns a logit x into c * tanh(x / c), before the masks.
        s_aux: ``[num_heads]``, one sink logit a head.
        position_bias: ``[1 or batch, num_heads, q_len, kv_len]``, added to the logits.
        sliding_window: only checked: the mask carries it.
        **kwargs: what else the model was called with; refused where it would change the result.

    Returns:
        The output ``[batch, q_len, num_heads, value_dim]``, contiguous, differentiable while gradients are recorded,
        and the weights ``[batch, num_heads, q_len, kv_len]``, detached, if the model records attentions, else None.

    Raises:
        ValueError, TypeError: what this version cannot do; the text names the argument and the way out.
    """
    if _jit.is_tracing():  # a trace would record this call's result as a constant
        raise ValueError("qkv cannot be traced by torch.jit: run the model eagerly, or under torch.compile")
    _check_options(module, kwargs)
    if s_aux is None and _has_sinks(module):
        raise ValueError("s_aux: the layer has attention sinks but did not hand them over")
    if attention_mask is None and isinstance(key, torch.Tensor):
        _check_nothing_to_hide(key.shape[2], sliding_window, kwargs)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    try:
        return _attend(
            query,
            key,
            value,
            attention_mask,
            position_bias,
            causal=bool(causal),
            scale=scaling,
            softcap=softcap or 0.0,
            sinks=s_aux,
            dropout=dropout,
            return_weights=_weights_wanted(kwargs),
        )
    except Exception:
        # What is wrong with a tensor is looked for only now: a layer's call should cost no more than its attention.
        _check_tensors(
            query=query, key=key, value=value, s_aux=s_aux, position_bias=position_bias, attention_mask=attention_mask
        )
        raise


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch, num_heads, q_len, _ = query.shape
    mask, bias = _split_mask(attention_mask, key.shape[2])
    if position_bias is not None:
        position_bias = position_bias[..., : key.shape[2]]
        bias = position_bias if bias is None else bias + position_bias
    # A model's mask says all there is to say; one query is the last, and sees every key.
    options["causal"] = options["causal"] and attention_mask is None and q_len > 1
    if not batch == key.shape[0] == value.shape[0]:  # learned queries come with a batch of 1
        batch = max(batch, key.shape[0])
        query, key, value = (each.expand(batch, -1, -1, -1) for each in (query, key, value))
    if options["dropout"] or _is_recorded(query, key, value, bias, options["sinks"]):
        result = qkv.torch.attention(query, key, value, mask=mask, bias=bias, query_offset=0, **options)
        out, weights = result if isinstance(result, tuple) else (result, None)
        return out.transpose(1, 2).contiguous(), weights
    out = query.new_empty((batch, q_len, num_heads, value.shape[-1]))
    result = qkv.attention(query, key, value, mask=mask, bias=bias, query_offset=0, out=out.transpose(1, 2), **options)
    return out, result[1] if isinstance(result, tuple) else None


def _is_recorded(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _has_sinks(module: torch.nn.Module) -> bool:
    # getattr of what a module lacks would build an error first.
    members = vars(module)
    return any(members.get(kind, {}).get("sinks") is not None for kind in ("_parameters", "_buffers")) or (
        members.get("sinks") is not None
    )


def _weights_wanted(kwargs: dict[str, Any]) -> bool:
    """Whether the model records attentions in this call.

    Models collect the second value of every attention layer through hooks, and skip a None: that is how other
    functions end up with an empty tuple. Not every model passes output_attentions down to here, so the collector is
    asked as well.
    """
    if kwargs.get("output_attentions"):
        return True
    collected = _collector.get() if _collector is not None else None
    return collected is not None and any(key.endswith("attentions") for key in collected)


def _split_mask(attention_mask: torch.Tensor | None, kv_len: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(mask, bias): a bool mask hides, a float mask is added."""
    if attention_mask is None:
        return None, None
    if not isinstance(attention_mask, torch.Tensor):
        raise TypeError(f"attention_mask: a {type(attention_mask).__name__}; expected a bool or float tensor")
    if attention_mask.ndim and attention_mask.shape[-1] > kv_len:
        attention_mask = attention_mask[..., :kv_len]
    if attention_mask.dtype == torch.bool:
        return attention_mask, None
    if attention_mask.is_floating_point():
        return None, attention_mask
    raise TypeError(f"attention_mask: {attention_mask.dtype}; expected bool (True = attend; use mask != 0) or float")


def _check_tensors(**tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if name in ("query", "key", "value") and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} is on {tensor.device}; qkv runs on the CPU: use model.to('cpu')")


def _check_options(module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
    for argument, meaning in _UNSUPPORTED.items():
        if kwargs.get(argument) is not None:
            raise ValueError(f"{argument}: {meaning} is not supported by qkv; use attn_implementation='eager'")
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if implementation is not None and implementation not in AttentionMaskInterface._global_mapping:
        raise ValueError(
            f"attn_implementation {implementation!r} has no mask function, so padding would be attended to: register "
            f"it with qkv.hf.register({implementation!r})"
        )


def _check_nothing_to_hide(kv_len: int, sliding_window: int | None, kwargs: dict[str, Any]) -> None:
    """Without a mask, whatever else would have hidden keys must be void."""
    if sliding_window is not None and 0 < sliding_window < kv_len:
        raise ValueError(
            f"sliding_window is {sliding_window} over {kv_len} keys but attention_mask is None: the window must be in "
            "the mask"
        )
    lengths = kwargs.get("cu_seq_lens_q")
    if lengths is not None and len(lengths) > 2:
        raise ValueError(
            f"cu_seq_lens_q packs {len(lengths) - 1} sequences into one but attention_mask is None: give position_ids "
            "and no cu_seq_lens, so that the mask keeps them apart"
        )
