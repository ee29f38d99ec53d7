"""How large the cache of one layer is: the reason why query heads share keys and values."""

from __future__ import annotations

from qkv_bench.decode_cases import DTYPES, DecodeCase

#: Heads of keys and values beside HEADS query heads.
LAYOUTS = {"MHA": 32, "GQA": 8, "MQA": 1}
HEADS, DIM, TOKENS = 32, 128, 8192


def by_layout() -> dict[str, dict[str, int]]:
    """{"MHA, kv heads: 32": {dtype: bytes}} at TOKENS tokens."""
    return {
        f"{name}, kv heads: {kv_heads}": {
            dtype: DecodeCase(HEADS, kv_heads, DIM, TOKENS, dtype).bytes for dtype in DTYPES
        }
        for name, kv_heads in LAYOUTS.items()
    }
