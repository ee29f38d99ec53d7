"""The contract of attention in plain PyTorch double: whole matrices, no tiles, nothing shared with the library.

Autograd goes through it: with arguments that require grad, gradients of out, lse and entropy are right.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from support import optional

torch: Any = optional("torch")


def attention(q: Any, k: Any, v: Any, *, scale: float | None = None, softcap: float = 0.0, **options: Any) -> Any:
    """All results of a call on [batch, heads, length, dim] arrays, as double tensors in a namespace."""
    q, k, v = (torch.as_tensor(x).double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    raw = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    capped = softcap * torch.tanh(raw / softcap) if softcap else raw
    position, visible = _visibility(raw, options)
    logits = _with_bias(capped, position, options)
    visible = visible & (logits != -math.inf)
    logits = torch.where(visible, logits, -math.inf)
    lse, weights = _softmax(logits, _per_head(options.get("sinks"), raw))
    weights = torch.where(visible, weights, 0.0)
    out = torch.where(visible.any(-1, keepdim=True), weights @ v, 0.0)
    return SimpleNamespace(
        out=out, lse=lse, weights=weights, visible=visible,
        logits={"scaled": raw, "capped": capped, "masked": logits},
        stats=_stats(raw, logits, weights, visible, options.get("stats_keys") or []),
    )  # fmt: skip


def _per_batch(values: Any, default: int, batch: int) -> Any:
    values = default if values is None else values
    return torch.as_tensor(values).reshape(-1, 1, 1, 1).expand(batch, 1, 1, 1)


def _visibility(raw: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    batch, _, rows, keys = raw.shape
    lengths = _per_batch(options.get("kv_lens"), keys, batch)
    offset = options.get("query_offset")
    offset = lengths - rows if offset is None else _per_batch(offset, 0, batch)
    p = offset + torch.arange(rows).reshape(1, 1, -1, 1)
    j = torch.arange(keys).reshape(1, 1, 1, -1)
    visible = (j < lengths).expand(raw.shape)
    if options.get("mask") is not None:
        visible = visible & torch.as_tensor(options["mask"])
    if options.get("causal"):
        visible = visible & (j <= p)
    left, right = options.get("window") or (None, None)
    if left is not None:
        visible = visible & (j >= p - left)
    if right is not None:
        visible = visible & (j <= p + right)
    return p - j, visible


def _per_head(values: Any, raw: Any) -> Any:
    if values is None:
        return None
    values = torch.as_tensor(values).double()
    return values.reshape(-1, values.shape[-1], 1, 1).expand(raw.shape[0], raw.shape[1], 1, 1)


def _with_bias(logits: Any, distance: Any, options: dict[str, Any]) -> Any:
    if options.get("bias") is not None:
        logits = logits + torch.as_tensor(options["bias"]).double()
    slopes = _per_head(options.get("alibi_slopes"), logits)
    return logits if slopes is None else logits - slopes * distance.abs()


def _softmax(logits: Any, sinks: Any) -> tuple[Any, Any]:
    columns = logits if sinks is None else torch.cat([logits, sinks.expand(*logits.shape[:-1], 1)], -1)
    empty = (columns == -math.inf).all(-1)
    # Where a row is empty autograd meets no logarithm of 0.
    lse = torch.logsumexp(torch.where(empty.unsqueeze(-1), 0.0, columns), -1)
    return torch.where(empty, -math.inf, lse), torch.exp(logits - lse.unsqueeze(-1))


def _stats(raw: Any, logits: Any, weights: Any, visible: Any, keys: list[int]) -> dict[str, Any]:
    empty = ~visible.any(-1)
    if raw.shape[-1] == 0:
        zero = torch.zeros(raw.shape[:-1], dtype=torch.double)
        low = zero - math.inf
        return {"max_raw": low, "max_logit": low, "max_key": zero.long() - 1, "max_weight": zero, "entropy": zero,
                "key_weight": zero}  # fmt: skip
    return {
        "max_raw": torch.where(visible, raw, -math.inf).amax(-1),
        "max_logit": logits.amax(-1),
        "max_key": torch.where(empty, -1, logits.argmax(-1)),
        "max_weight": weights.amax(-1),
        "entropy": -(weights * torch.log(torch.where(weights > 0, weights, 1.0))).sum(-1),
        "key_weight": weights[..., list(keys)].sum(-1),
    }
