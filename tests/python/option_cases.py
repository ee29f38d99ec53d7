"""Calls with every option, alone and together, on q of [B, H, N, D] and S keys: what the oracle's tests run over."""

from __future__ import annotations

from typing import Any

import numpy as np

B, H, N, S, D = 2, 4, 5, 9, 8

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.3},
    "scale_zero": {"scale": 0.0},
    "scale_negative": {"scale": -0.5},
    "softcap": {"softcap": 1.5, "scale": 2.0},
    "causal": {"causal": True},
    "causal_top_left": {"causal": True, "query_offset": 0},
    "causal_offset_negative": {"causal": True, "query_offset": -2},
    "causal_offset_per_batch": {"causal": True, "query_offset": [1, 6]},
    "causal_lens": {"causal": True, "kv_lens": [3, 9]},
    "lens": {"kv_lens": [4, 0]},
    "lens_one": {"kv_lens": 6},
    "window": {"window": (2, 1)},
    "window_left": {"window": (3, None)},
    "window_right": {"window": (None, 0)},
    "window_none": {"window": (None, None)},
    "window_self": {"window": (0, 0), "query_offset": [0, 3]},
    "mask": {"mask": "BHNS"},
    "mask_keys": {"mask": "B11S"},
    "mask_of_lengths": {"mask": "NS"},
    "mask_one_axis": {"mask": "S"},
    "mask_causal_window": {"mask": "1HNS", "causal": True, "window": (4, None)},
    "bias": {"bias": "BHNS"},
    "bias_head": {"bias": "H11"},
    "bias_keys": {"bias": "B11S", "softcap": 2.0},
    "bias_rows": {"bias": "1HN1"},
    "bias_one_axis": {"bias": "S", "causal": True},
    "bias_number": {"bias": ""},
    "bias_hides": {"bias": "hiding"},
    "sinks": {"sinks": "H"},
    "sinks_batch_empty_rows": {"sinks": "BH", "kv_lens": [0, 5], "causal": True},
    "alibi": {"alibi_slopes": "H"},
    "alibi_batch_causal": {"alibi_slopes": "BH", "causal": True, "query_offset": [2, 4]},
    "all": {
        "mask": "B1NS", "bias": "BHNS", "causal": True, "query_offset": [3, 4], "window": (5, None), "scale": 0.4,
        "softcap": 3.0, "sinks": "H", "alibi_slopes": "BH", "kv_lens": [8, 6],
    },
}  # fmt: skip


def filled(options: dict[str, Any], dtype: Any, rng: np.random.Generator) -> dict[str, Any]:
    """The options with their arrays made: "B1NS" is the shape of a mask or a bias, "H" that of sinks or slopes."""
    extents = {"B": B, "H": H, "N": N, "S": S, "1": 1}
    made = dict(options)
    for name in ("mask", "bias", "sinks", "alibi_slopes"):
        shape = made.get(name)
        if shape == "hiding":
            made[name] = np.where(rng.random((B, 1, N, S)) < 0.5, rng.standard_normal((B, 1, N, S)), -np.inf).astype(
                dtype
            )
        elif shape is not None:
            sizes = tuple(extents[letter] for letter in shape)
            made[name] = rng.random(sizes) < 0.6 if name == "mask" else rng.standard_normal(sizes).astype(dtype)
    return made
