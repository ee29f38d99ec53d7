"""What is measured: the shapes and options of attention, and how many operations each of them needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qkv_bench.dtypes import BFLOAT16, FLOAT16, FLOAT32
from qkv_bench.storage import stored

MaskKind = Literal["none", "padding", "random"]
#: What is computed: attention, its gradients from what that has saved, or both.
Direction = Literal["forward", "backward", "both"]
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward", "both")
#: Floating-point operations of a visible pair of a row and a key, by dim: two products of matrices there, five back.
OPERATIONS: dict[Direction, int] = {"forward": 4, "backward": 10, "both": 14}
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One call of attention: self-attention of [batch, heads, length, dim] of one dtype with at most one mask.

    Or what it takes to differentiate it by q, k and v, and by a bias of each head where there is one.
    Cases of one `group` are measured together, round by round, so that they can be compared with each other.
    """

    shape: tuple[int, int, int, int]
    causal: bool = False
    window: tuple[int, int] | None = None
    mask: MaskKind = "none"
    kv_lens: int | None = None
    bias: bool = False
    stats: bool = False
    dtype: str = FLOAT32
    group: str = ""
    two_threads: bool = False
    direction: Direction = "forward"
    head_bias: bool = False
    dropout: float = 0.0

    @property
    def name(self) -> str:
        """The name in tables, on the command line and in targets.json: "1x8x2048x64-causal-bfloat16"."""
        parts = ["x".join(map(str, self.shape)), "causal" if self.causal else "full"]
        if self.window is not None:
            parts.append(f"window-{self.window[0] + self.window[1] + 1}")
        if self.mask != "none":
            parts.append(f"mask-{self.mask}")
        if self.kv_lens is not None:
            parts.append("lengths")
        options = (("bias", self.bias), ("stats", self.stats), ("bias-gradient", self.head_bias))
        parts += [name for name, wanted in options if wanted]
        parts += [f"dropout-{self.dropout:g}"] if self.dropout else []
        parts += [] if self.direction == "forward" else [self.direction]
        parts += [] if self.dtype == FLOAT32 else [self.dtype]
        return "-".join(parts)

    @property
    def visible_pairs(self) -> int:
        """Pairs of a row and a key that it sees, of one head, added up over the batch.

        Counted from the formula for causality, windows and padding; a random mask has no formula and counts as if all
        were visible, since no kernel that works by blocks can skip anything of it.
        """
        batch, _, n, _ = self.shape
        keys = n // 2 if self.mask == "padding" else n if self.kv_lens is None else self.kv_lens
        left, right = self.window if self.window is not None else (n, n)
        if self.causal:
            right = 0
        rows = np.arange(n)
        seen = np.minimum(rows + right, keys - 1) - np.maximum(rows - left, 0) + 1
        return batch * int(np.maximum(seen, 0).sum())

    @property
    def visible_operations(self) -> int:
        """Heads * visible pairs * dim * 4 (multiplications and additions of Q K^T and P V), of gradients * 10."""
        _, heads, _, dim = self.shape
        return OPERATIONS[self.direction] * heads * self.visible_pairs * dim


@dataclass
class Inputs:
    """The arrays of a case, the same ones for every runner. Masks are bool, True = attend."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    grad: Array
    """What reaches the output from a loss."""


def make_inputs(case: Case, seed: int = 1) -> Inputs:
    """Normal numbers, rounded to the dtype; a random mask hides half of the keys, but no row from itself."""
    rng = np.random.default_rng(seed)
    q, k, v, grad = (stored(rng.standard_normal(case.shape, dtype=np.float32), case.dtype) for _ in range(4))
    n = case.shape[2]
    mask: Array | None = None
    if case.mask == "padding":
        mask = (np.arange(n) < n // 2).reshape(1, 1, 1, n)
    elif case.mask == "random":
        mask = (rng.random((n, n)) < 0.5) | np.eye(n, dtype=np.bool_)
    bias = rng.standard_normal((n, n), dtype=np.float32) if case.bias else None
    if case.head_bias:
        bias = rng.standard_normal((1, case.shape[1], n, n), dtype=np.float32)
    return Inputs(q, k, v, mask, bias, grad)


def dense_mask(case: Case, inputs: Inputs) -> Array | None:
    """What the case hides beyond causality, as the bool mask that a library without the option would be given.

    A window brings causality with it. None where nothing else is hidden.
    """
    if inputs.mask is not None:
        return inputs.mask
    n = case.shape[2]
    keys = np.arange(n)
    if case.kv_lens is not None:
        return (keys < case.kv_lens).reshape(1, 1, 1, n)
    if case.window is None:
        return None
    left, right = case.window
    distance = keys - keys[:, None]
    return (distance >= -left) & (distance <= (0 if case.causal else right))


def _both(*shape: int, group: str = "", two_threads: bool = False, dtype: str = FLOAT32) -> list[Case]:
    size = (shape[0], shape[1], shape[2], shape[3])
    group = group or Case(size, dtype=dtype).name
    return [Case(size, causal=causal, group=group, two_threads=two_threads, dtype=dtype) for causal in (False, True)]


def _all_cases() -> list[Case]:
    cases: list[Case] = []
    # The shapes of models: sequences from short to long, and batches of short ones. Odd lengths stand beside the even
    # ones that they are compared with.
    for n in (512, 513):
        cases += _both(1, 8, n, 64, group="512", two_threads=n == 512)
    for n in (2048, 2049):
        cases += _both(1, 8, n, 64, group="2048", two_threads=n == 2048)
    n = 2048
    plain = (1, 8, n, 64)
    cases += [
        Case(plain, mask="padding", group="2048"),
        Case(plain, kv_lens=n // 2, group="2048"),
        Case(plain, mask="random", group="2048"),
        Case(plain, bias=True, group="2048"),
        Case(plain, stats=True, group="2048"),
    ]
    cases += _both(1, 8, 4096, 64, two_threads=True)
    cases += _both(1, 8, 2048, 128, two_threads=True)
    cases += _both(8, 12, 128, 64)
    cases += _both(32, 8, 128, 32)
    cases += _both(64, 12, 50, 64)
    for n in (197, 509):
        cases += _both(1, 8, n, 64)
    for dim in (40, 80, 96, 256):
        cases += _both(1, 8, 1024, dim)
    cases.append(Case((1, 8, 8192, 64), causal=True, window=(255, 0), group="window"))
    cases += _both(1, 4, 16384, 64, two_threads=True)
    for dtype in (BFLOAT16, FLOAT16):
        for shape in ((1, 8, 512, 64), (1, 8, 2048, 64), (1, 8, 2048, 128), (8, 12, 128, 64)):
            cases += _both(*shape, dtype=dtype)
    return cases + _gradient_cases()


def _gradient_cases() -> list[Case]:
    """The gradients alone, and with the forward pass as in training."""
    shapes = [(1, 8, 512, 64), (1, 8, 2048, 64), (1, 8, 2048, 128), (8, 12, 128, 64)]
    more = [(1, 8, 4096, 64), (32, 8, 128, 32), (64, 12, 50, 64), (1, 8, 197, 64), (1, 8, 1024, 96)]
    cases: list[Case] = []
    for dtype in (FLOAT32, BFLOAT16):
        for shape in shapes + (more if dtype == FLOAT32 else []):
            for direction in ("backward", "both"):
                long = shape in ((1, 8, 2048, 64), (1, 8, 2048, 128)) and dtype == FLOAT32
                both = _both(*shape, two_threads=long and direction == "backward", dtype=dtype)
                group = f"{Case(shape, dtype=dtype).name}-{direction}"
                cases += [replace(case, direction=direction, group=group) for case in both]
    plain = Case((1, 8, 2048, 64), direction="both", group="1x8x2048x64-full-both")
    return [*cases, replace(plain, dropout=0.1), replace(plain, head_bias=True)]


CASES: dict[str, Case] = {case.name: case for case in _all_cases()}

#: Calls beyond this take seconds each: --quick leaves them out.
QUICK_OPERATIONS = 60e9


def find_case(name: str) -> Case:
    """The case of that name. Raises KeyError with the names that exist."""
    if name not in CASES:
        raise KeyError(f"no case is called {name!r}; there are {', '.join(CASES)}")
    return CASES[name]
