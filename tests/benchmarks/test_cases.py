"""Cases: how many pairs are visible, by counting them, and that the list is whole."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qkv_bench.cases import CASES, Case, dense_mask, find_case, make_inputs

SMALL = [
    Case((2, 3, 7, 4)),
    Case((2, 3, 7, 4), causal=True),
    Case((2, 3, 8, 4), mask="padding"),
    Case((1, 1, 7, 4), mask="padding", causal=True),
    Case((2, 3, 8, 4), kv_lens=5),
    Case((2, 3, 8, 4), kv_lens=5, causal=True),
    Case((1, 2, 9, 4), causal=True, window=(2, 0)),
    Case((1, 2, 9, 4), window=(2, 3)),
    Case((1, 2, 3, 4), causal=True, window=(255, 0)),
    Case((1, 2, 9, 4), bias=True),
    Case((1, 2, 9, 4), stats=True),
    Case((1, 2, 1, 4), causal=True),
]


def name_of(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", SMALL, ids=name_of)
def test_visible_pairs_are_those_that_one_can_count(case: Case) -> None:
    batch, heads, n, dim = case.shape
    count = 0
    for i in range(n):
        for j in range(n):
            visible = not (case.causal and j > i)
            if case.window is not None:
                visible &= i - case.window[0] <= j <= i + case.window[1]
            if case.mask == "padding":
                visible &= j < n // 2
            if case.kv_lens is not None:
                visible &= j < case.kv_lens
            count += visible
    assert case.visible_pairs == batch * count
    assert case.visible_operations == 4 * batch * heads * dim * count


@pytest.mark.parametrize("case", SMALL, ids=name_of)
def test_dense_mask_hides_what_the_formula_hides(case: Case) -> None:
    n = case.shape[2]
    mask = dense_mask(case, make_inputs(case))
    seen = np.ones((n, n), np.bool_) if mask is None else np.broadcast_to(mask, (1, 1, n, n))[0, 0].copy()
    if case.causal:
        seen &= np.tri(n, dtype=np.bool_)
    assert case.shape[0] * seen.sum() == case.visible_pairs


def test_a_random_mask_leaves_every_row_something() -> None:
    case = Case((1, 2, 64, 4), mask="random")
    mask = make_inputs(case).mask
    assert mask is not None
    assert mask.shape == (64, 64)
    assert mask.any(axis=1).all()
    assert 0.4 < mask.mean() < 0.6
    assert case.visible_pairs == 64 * 64


def test_inputs_are_the_same_every_time_and_not_each_other() -> None:
    one, two = make_inputs(SMALL[0]), make_inputs(SMALL[0])
    assert np.array_equal(one.q, two.q)
    assert not np.array_equal(one.q, one.k)
    assert not np.array_equal(one.k, one.v)
    assert one.q.dtype == np.float32


def test_the_list_is_whole() -> None:
    shapes = [
        "1x8x512x64", "1x8x2048x64", "1x8x4096x64", "1x8x2048x128", "8x12x128x64", "32x8x128x32", "1x4x16384x64",
        "64x12x50x64", "1x8x513x64", "1x8x2049x64", "1x8x197x64", "1x8x509x64", "1x8x1024x40", "1x8x1024x80",
        "1x8x1024x96", "1x8x1024x256",
    ]  # fmt: skip
    options = ["mask-padding", "lengths", "mask-random", "bias", "stats"]
    expected = {f"{shape}-{kind}" for shape in shapes for kind in ("full", "causal")}
    expected |= {f"1x8x2048x64-full-{option}" for option in options}
    expected.add("1x8x8192x64-causal-window-256")
    expected |= {
        f"{shape}-{kind}-{dtype}"
        for shape in ("1x8x512x64", "1x8x2048x64", "1x8x2048x128", "8x12x128x64")
        for kind in ("full", "causal")
        for dtype in ("bfloat16", "float16")
    }
    some = ["1x8x512x64", "1x8x2048x64", "1x8x2048x128", "8x12x128x64"]
    more = ["1x8x4096x64", "32x8x128x32", "64x12x50x64", "1x8x197x64", "1x8x1024x96"]
    for direction in ("backward", "both"):
        for kind in ("full", "causal"):
            expected |= {f"{shape}-{kind}-{direction}" for shape in some + more}
            expected |= {f"{shape}-{kind}-{direction}-bfloat16" for shape in some}
    expected |= {f"1x8x2048x64-full-{option}-both" for option in ("dropout-0.1", "bias-gradient")}
    assert set(CASES) == expected


def test_16_bits_are_the_same_numbers_rounded() -> None:
    wide = make_inputs(Case((1, 2, 9, 4)))
    half = make_inputs(Case((1, 2, 9, 4), dtype="float16"))
    assert half.q.dtype == half.k.dtype == half.v.dtype == np.float16
    np.testing.assert_allclose(half.k.astype(np.float32), wide.k, rtol=2**-11)
    assert not np.array_equal(half.k.astype(np.float32), wide.k)


def test_names_tell_cases_apart() -> None:
    for case in SMALL:
        for name in ("causal", "bias", "stats"):
            changed = dataclasses.replace(case, **{name: not getattr(case, name)})
            assert changed.name != case.name
        assert dataclasses.replace(case, dtype="float16").name == case.name + "-float16"
    with pytest.raises(KeyError, match="no case is called 'x'"):
        find_case("x")
