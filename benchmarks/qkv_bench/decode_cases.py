"""What decoding measures: one query row a head against the keys and values of all tokens before it."""

from __future__ import annotations

from dataclasses import dataclass

from qkv_bench.dtypes import BFLOAT16, BYTES, FLOAT32, INT8

#: A row of K or V of int8 brings one number that it is multiplied by.
SCALE_BYTES = 4
LENGTHS = (8192, 32768)
DTYPES = (FLOAT32, BFLOAT16, INT8)


@dataclass(frozen=True)
class DecodeCase:
    """One call for one sequence: `heads` query rows, `kv_heads` heads of K and V in `dtype`."""

    heads: int
    kv_heads: int
    dim: int
    kv_len: int
    dtype: str

    @property
    def name(self) -> str:
        """In tables and targets: "decode-8x64-kv8192-float32", with fewer kv heads "decode-32:8x128-kv8192-int8"."""
        heads = str(self.heads) if self.heads == self.kv_heads else f"{self.heads}:{self.kv_heads}"
        return f"decode-{heads}x{self.dim}-kv{self.kv_len}-{self.dtype}"

    @property
    def bytes(self) -> int:
        """Of K and V, with the scales of int8; each counted once, however many query heads share it."""
        rows = 2 * self.kv_heads * self.kv_len
        return rows * (self.dim * BYTES[self.dtype] + (SCALE_BYTES if self.dtype == INT8 else 0))


def _all_cases() -> list[DecodeCase]:
    layouts = ((8, 8, 64), (32, 8, 128))
    return [DecodeCase(*layout, kv_len, dtype) for layout in layouts for kv_len in LENGTHS for dtype in DTYPES]


CASES: dict[str, DecodeCase] = {case.name: case for case in _all_cases()}
