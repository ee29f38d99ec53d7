"""qkv.torch.multi_head_attention_forward: PyTorch's function of that name, on qkv."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from qkv._errors import ShapeError
from qkv.torch._attention import attention

__all__ = ["multi_head_attention_forward"]

_F: Final[Any] = torch.nn.functional


def multi_head_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor | None,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    training: bool = True,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: torch.Tensor | None = None,
    k_proj_weight: torch.Tensor | None = None,
    v_proj_weight: torch.Tensor | None = None,
    static_k: torch.Tensor | None = None,
    static_v: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """torch.nn.functional.multi_head_attention_forward, with its signature and meaning, computed by qkv.

    Lengths come first: query is [q_len, batch, embed_dim] or [q_len, embed_dim]. Masks have PyTorch's polarity for this
    function: True = hidden. See `MultiheadAttention` for what differs: no NaN where a row sees nothing, and
    ``is_causal`` needs no mask.

    Parameters
    ----------
    query, key, value, embed_dim_to_check, num_heads
        Inputs, and what they are checked against.
    in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias
        Projections; with use_separate_proj_weight, q_proj_weight, k_proj_weight and v_proj_weight instead of the first.
    use_separate_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight
        The same, by three matrices.
    bias_k, bias_v, add_zero_attn
        A learned key and value, and a key and value of 0, after all others.
    static_k, static_v
        Keys and values that are projected already, [batch * num_heads, length, head_dim].
    dropout_p, training
        Weights are dropped where training is true.
    key_padding_mask, attn_mask, is_causal, need_weights, average_attn_weights
        As in `MultiheadAttention`.

    Returns
    -------
    (out, weights or None)
        Shapes as PyTorch's.
    """
    batched = query.dim() == 3
    _check_axes(query, key, value, batched)
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    embed_dim = query.shape[-1]
    if embed_dim != embed_dim_to_check:
        raise ShapeError(f"query: embed_dim is {embed_dim}, expected {embed_dim_to_check}")
    if embed_dim % num_heads:
        raise ShapeError(f"embed_dim: {embed_dim} is not divisible by num_heads {num_heads}")
    if use_separate_proj_weight:
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        weights = (q_proj_weight, k_proj_weight, v_proj_weight)
        q, k, v = (_F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    else:
        q, k, v = _project(query, key, value, in_proj_weight, in_proj_bias)
    if bias_k is not None and bias_v is not None:
        batch = query.shape[1]
        k = torch.cat([k, bias_k.reshape(1, 1, -1).expand(1, batch, -1)])
        v = torch.cat([v, bias_v.reshape(1, 1, -1).expand(1, batch, -1)])
    q = _split_heads(q, num_heads)
    k = _split_heads(k, num_heads) if static_k is None else _of_heads(static_k, num_heads)
    v = _split_heads(v, num_heads) if static_v is None else _of_heads(static_v, num_heads)
    if add_zero_attn:
        k, v = (_F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    kv_len = key.shape[0] if static_k is None else static_k.shape[1]
    masks = _to_masks(q, kv_len, k.shape[2] - kv_len, attn_mask, key_padding_mask, is_causal)
    dropout = dropout_p if training else 0.0
    out, kept = _attend(q, k, v, masks, dropout, need_weights)
    out = _F.linear(out.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if kept is not None and average_attn_weights:
        kept = kept.mean(1)
    if batched:
        return out, kept
    return out.squeeze(1), None if kept is None else kept.squeeze(0)


class _Masks(NamedTuple):
    """Masks in qkv's terms: True = attend."""

    mask: torch.Tensor | None
    bias: torch.Tensor | None
    causal: bool


def _check_axes(query: Any, key: Any, value: Any, batched: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested:
            raise ValueError(f"{name}: a nested tensor, expected a dense one: pad it and give key_padding_mask")
        if tensor.dim() not in (2, 3) or (tensor.dim() == 3) != batched:
            raise ShapeError(
                f"{name}: shape {list(tensor.shape)} beside a query of shape {list(query.shape)}, expected "
                "[length, batch, embed_dim] or [length, embed_dim] for all (MultiheadAttention with batch_first: "
                "[batch, length, embed_dim])"
            )
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(f"value: shape {list(value.shape)} does not fit key of shape {list(key.shape)}")
    if batched and key.shape[1] != query.shape[1]:
        raise ShapeError(f"key: shape {list(key.shape)}, expected the batch of query, {query.shape[1]}")


def _project(query: Any, key: Any, value: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """By one product where the three are one tensor, by two where key and value are."""
    if key is value and query is key:
        q, k, v = _F.linear(query, weight, bias).chunk(3, -1)
        return q, k, v
    width = query.shape[-1]
    q_weight, kv_weight = weight.split([width, 2 * width])
    q_bias, kv_bias = (None, None) if bias is None else bias.split([width, 2 * width])
    q = _F.linear(query, q_weight, q_bias)
    if key is value:
        k, v = _F.linear(key, kv_weight, kv_bias).chunk(2, -1)
        return q, k, v
    k_weight, v_weight = kv_weight.chunk(2)
    k_bias, v_bias = (None, None) if kv_bias is None else kv_bias.chunk(2)
    return q, _F.linear(key, k_weight, k_bias), _F.linear(value, v_weight, v_bias)


def _split_heads(x: Any, num_heads: int) -> Any:
    """[length, batch, embed_dim] as [batch, num_heads, length, head_dim], in the same memory."""
    return x.unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)


def _of_heads(x: Any, num_heads: int) -> Any:
    """PyTorch's [batch * num_heads, length, head_dim]."""
    return x.unflatten(0, (-1, num_heads))


def _to_masks(q: Any, kv_len: int, extra: int, attn_mask: Any, key_padding_mask: Any, causal: bool) -> _Masks:
    """Both masks in qkv's terms; a matrix is made only where both are given, or keys are added to one."""
    batch, num_heads, q_len, _ = q.shape
    masks: list[Any] = []
    biases: list[Any] = []
    if attn_mask is not None:
        shape = (q_len, kv_len)
        if attn_mask.dim() == 3:
            if attn_mask.shape != (batch * num_heads, *shape):
                raise ShapeError(
                    f"attn_mask: shape {list(attn_mask.shape)}, expected [batch * num_heads, q_len, kv_len] = "
                    f"{[batch * num_heads, *shape]}"
                )
            attn_mask = attn_mask.unflatten(0, (batch, num_heads))
        elif attn_mask.shape != shape:
            raise ShapeError(f"attn_mask: shape {list(attn_mask.shape)}, expected [q_len, kv_len] = {list(shape)}")
        _sort("attn_mask", attn_mask, q.dtype, masks, biases)
    if key_padding_mask is not None:
        if key_padding_mask.shape != (batch, kv_len):
            raise ShapeError(
                f"key_padding_mask: shape {list(key_padding_mask.shape)}, expected [batch, kv_len] = {[batch, kv_len]}"
            )
        _sort("key_padding_mask", key_padding_mask[:, None, None, :], q.dtype, masks, biases)
    if extra and causal:  # the keys that are added stand after all others, and every row sees them
        masks.append(torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril())
        causal = False
    mask = bias = None
    if masks:
        mask = masks[0]
        for other in masks[1:]:
            mask = mask & other
        mask = _F.pad(mask, (0, extra), value=True) if extra else mask
    if biases:
        bias = sum(biases[1:], start=biases[0])
        bias = _F.pad(bias, (0, extra)) if extra else bias
    return _Masks(mask, bias, causal)


def _sort(name: str, given: Any, dtype: Any, masks: list[Any], biases: list[Any]) -> None:
    if given.dtype == torch.bool:
        masks.append(~given)
    elif given.is_floating_point():
        biases.append(given.to(dtype))
    else:
        raise TypeError(f"{name}: {given.dtype}; expected bool (True = hidden; use mask != 0) or float")


def _attend(q: Any, k: Any, v: Any, masks: _Masks, dropout: float, need_weights: bool) -> tuple[Any, Any]:
    options: dict[str, Any] = {**masks._asdict(), "query_offset": 0}
    if not need_weights:
        return attention(q, k, v, dropout=dropout, **options), None
    recorded = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (q, k, v, masks.bias)
    )
    if recorded or dropout:
        return _attend_materialised(q, k, v, masks, dropout)
    out, weights = attention(q, k, v, return_weights=True, **options)
    return out, weights.to(q.dtype)


def _attend_materialised(q: Any, k: Any, v: Any, masks: _Masks, dropout: float) -> tuple[Any, Any]:
    """With the weights as a part of the graph: differentiable, and after the dropout, as PyTorch returns them."""
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if masks.bias is not None:
        logits = logits + masks.bias
    mask = masks.mask
    if masks.causal:
        future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
        mask = future if mask is None else mask & future
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    # A row of -inf alone would be NaN, and so would its gradients.
    empty = (logits == -torch.inf).all(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    weights = _F.dropout(weights, dropout)
    return weights @ v, weights
