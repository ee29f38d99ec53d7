"""Modules in the place of PyTorch's: the same parameters under the same names, the same calls."""

from __future__ import annotations

from typing import Any

import torch

from qkv.torch._multihead import multi_head_attention_forward

__all__ = ["MultiheadAttention", "TransformerEncoderLayer"]


class MultiheadAttention(torch.nn.MultiheadAttention):  # type: ignore[misc]
    """torch.nn.MultiheadAttention on qkv: its arguments, its parameters, its state_dict.

    What differs: a row that sees nothing has output 0 before the output projection and weights 0, never NaN.
    ``is_causal=True`` hides the future by itself, with or without an attn_mask, whatever else is asked for; nothing of
    q_len x kv_len is made for it. bool and float masks may be mixed. There is no fast path that rounds otherwise.

    ``need_weights=True``, the default as in PyTorch, makes the weights a part of the graph while gradients are
    recorded, at a cost of q_len x kv_len; so does dropout. Pass ``need_weights=False`` where they are not read.

    Examples
    --------
    >>> import torch
    >>> import qkv.torch
    >>> theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> ours = qkv.torch.MultiheadAttention(16, 4, batch_first=True)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(2, 5, 16)
    >>> torch.allclose(ours(x, x, x)[0], theirs(x, x, x)[0], atol=1e-6)
    True
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attends, as torch.nn.MultiheadAttention.forward documents it.

        Parameters
        ----------
        query, key, value : tensors
            [batch, length, dim] with batch_first, else [length, batch, dim]; or [length, dim].
        key_padding_mask : bool or float tensor, shape [batch, kv_len], optional
            True = hidden; float is added.
        need_weights : bool, default True
            Also return the weights.
        attn_mask : bool or float tensor, shape [q_len, kv_len] or [batch * num_heads, q_len, kv_len], optional
            The same.
        average_attn_weights : bool, default True
            Weights averaged over the heads, [batch, q_len, kv_len], or [batch, num_heads, q_len, kv_len].
        is_causal : bool, default False
            Row i attends to keys 0..i.

        Returns
        -------
        (out, weights or None)
        """
        transposed = self.batch_first and query.dim() == 3
        if transposed:
            # One tensor stays one, so that its projections stay one product.
            same_query, same_value = query is key, value is key
            key = key.transpose(0, 1)
            query = key if same_query else query.transpose(0, 1)
            value = key if same_value else value.transpose(0, 1)
        separate: dict[str, Any] = {}
        if not self._qkv_same_embed_dim:
            separate = {
                "use_separate_proj_weight": True,
                "q_proj_weight": self.q_proj_weight,
                "k_proj_weight": self.k_proj_weight,
                "v_proj_weight": self.v_proj_weight,
            }
        out, weights = multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            **separate,
        )
        return out.transpose(0, 1) if transposed else out, weights


class TransformerEncoderLayer(torch.nn.TransformerEncoderLayer):  # type: ignore[misc]
    """torch.nn.TransformerEncoderLayer on qkv: its arguments, its parameters, its state_dict.

    ``self_attn`` is a `MultiheadAttention` of this package. torch.nn.TransformerEncoder takes it as a layer; pass
    ``enable_nested_tensor=False`` there, or it says in a warning that it does not convert padded batches.
    """

    def __init__(self, d_model: int, nhead: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(d_model, nhead, *args, **kwargs)
        theirs: Any = self.self_attn  # type: ignore[has-type]
        self.self_attn = MultiheadAttention(
            d_model,
            nhead,
            dropout=theirs.dropout,
            bias=theirs.in_proj_bias is not None,
            batch_first=theirs.batch_first,
            device=theirs.in_proj_weight.device,
            dtype=theirs.in_proj_weight.dtype,
        )
        # What is random was drawn once more; a seed shall give what it gives PyTorch's layer.
        self.self_attn.load_state_dict(theirs.state_dict())
        # Without it torch.nn.TransformerEncoder would hand over nested tensors, for a fast path that is not ours.
        self.activation_relu_or_gelu = 0

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """One layer, as torch.nn.TransformerEncoderLayer.forward documents it.

        Parameters
        ----------
        src : tensor, [batch, length, d_model] with batch_first, else [length, batch, d_model]; or [length, d_model]
            The sequence.
        src_mask, src_key_padding_mask : tensors, optional
            As attn_mask and key_padding_mask of `MultiheadAttention`: True = hidden.
        is_causal : bool, default False
            Row i attends to keys 0..i.

        Returns
        -------
        tensor, shape of src
        """
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal=is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal=is_causal))
        return self.norm2(x + self._ff_block(x))
