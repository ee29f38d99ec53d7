"""What rotations are measured on: 32 heads of 2048 rows of 128 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qkv_bench.dtypes import BFLOAT16, BYTES, FLOAT32

SHAPE = (1, 32, 2048, 128)
Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class RopeCase:
    """One call: all rows of one array into another."""

    layout: Layout
    dtype: str

    @property
    def name(self) -> str:
        """In tables and targets: "rope-1x32x2048x128-half-float32"."""
        return f"rope-{'x'.join(map(str, SHAPE))}-{self.layout}-{self.dtype}"

    @property
    def bytes(self) -> int:
        """Read and written."""
        batch, heads, rows, columns = SHAPE
        return 2 * batch * heads * rows * columns * BYTES[self.dtype]


_LAYOUTS: tuple[Layout, ...] = ("half", "interleaved")
CASES = {case.name: case for case in (RopeCase(layout, d) for d in (FLOAT32, BFLOAT16) for layout in _LAYOUTS)}
