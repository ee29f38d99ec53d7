"""Causal attention with grouped heads, and what "invisible means absent" buys."""

import numpy as np

import qkv

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 8, 1000, 64), dtype=np.float32)  # batch, heads, queries, head_dim
k, v = rng.standard_normal((2, 1, 2, 1000, 64), dtype=np.float32)  # 2 key heads: each serves 4 query heads

out = qkv.attention(q, k, v, causal=True)
k[:, :, 900:] = v[:, :, 900:] = np.nan  # rows 0..899 may not see these keys,
again = qkv.attention(q, k, v, causal=True)
print(np.array_equal(out[:, :, :900], again[:, :, :900]))  # so for them nothing happened: True
