"""The ragged batch that is measured: how long its sequences are, and what work they are with and without padding."""

from __future__ import annotations

#: Of 32 sequences: from 1 to the longest, in no order; about half of a padded batch is padding.
LENGTHS = (
    41, 512, 7, 290, 128, 463, 1, 205, 333, 96, 17, 418, 64, 241, 509, 150,
    3, 377, 274, 83, 182, 486, 29, 350, 112, 227, 441, 55, 396, 166, 310, 257,
)  # fmt: skip
LONGEST, HEADS, DIM = max(LENGTHS), 8, 64
_SHAPE = f"{len(LENGTHS)}x{HEADS}x{LONGEST}x{DIM}"
RAGGED, PADDED = f"ragged-{_SHAPE}", f"padded-{_SHAPE}"
NAMES = (RAGGED, PADDED)


def operations(name: str) -> int:
    """Of visible work: each row of a sequence sees its keys, and in the padded batch the rows beyond it do as well."""
    pairs = sum(length * (length if name == RAGGED else LONGEST) for length in LENGTHS)
    return 4 * HEADS * DIM * pairs


def description() -> str:
    """The fixed list, for whoever reads the table."""
    return f"ragged: {len(LENGTHS)} sequences, {HEADS} heads of {DIM}, lengths {', '.join(map(str, LENGTHS))}"
