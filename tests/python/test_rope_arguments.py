"""qkv.position.Rope: what it is made of, copies, and what is refused; rotations are in test_rope.py."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import LLAMA3, YARN, assert_same_bits

import qkv
from qkv.position import Rope


def test_numbers_of_a_configuration() -> None:
    rope = Rope(64, scaling={"rope_theta": 500000.0, "partial_rotary_factor": 0.25, "type": "linear", "factor": 2})
    assert (rope.base, rope.rotary_dim, rope.head_dim, rope.layout) == (500000.0, 16, 64, "half")
    assert repr(rope) == "Rope(head_dim=64, base=500000.0, rotary_dim=16, layout='half', scaling='linear')"
    assert rope.frequencies()[0] == 0.5
    assert Rope(8, scaling={"rope_theta": 100.0}).base == 100.0
    assert Rope(8, base=100, scaling={"rope_theta": 100.0, "rope_type": "default", "type": None}).base == 100.0
    assert Rope(8).base == 10000.0
    assert Rope(8, scaling=None).attention_factor == 1.0


def test_yarn_takes_what_it_lacks_from_the_model() -> None:
    given = {"rope_type": "yarn", "factor": 4.0}
    full = Rope(64, scaling={**given, "original_max_position_embeddings": 2048}).frequencies()
    assert_same_bits(Rope(64, scaling=given, max_position=2048).frequencies(), full)
    implied = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 2048}
    assert_same_bits(Rope(64, scaling=implied, max_position=8192).frequencies(), full)
    zeros = {**given, "beta_fast": 0, "beta_slow": None, "original_max_position_embeddings": 2048}
    assert_same_bits(Rope(64, scaling=zeros).frequencies(), full)


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        (
            {"rope_type": "longrope"},
            r"scaling: rope_type 'longrope' is not supported, expected one of default, linear, ",
        ),
        ({"type": "su"}, r"scaling: rope_type 'su' is not supported"),
        ({"rope_type": "linear", "type": "yarn"}, r"scaling: rope_type is 'linear', but type is 'yarn'$"),
        ({"rope_type": "linear"}, r"scaling: 'linear' needs 'factor', which is missing$"),
        ({"rope_type": "linear", "factor": None}, r"scaling: 'linear' needs 'factor', which is missing$"),
        (
            {"rope_type": "linear", "factor": 2, "beta_fast": 3},
            r"scaling: 'linear' takes no 'beta_fast', expected some",
        ),
        ({"rope_type": "default", "factor": 2}, r"scaling: 'default' takes no 'factor'"),
        ({"factor": 2.0}, r"scaling: 'default' takes no 'factor'"),
        ({"rope_type": "dynamic", "factor": 2}, r"max_position: dynamic scaling needs it$"),
        ({"rope_type": "yarn", "factor": 2}, r"scaling: 'yarn' needs 'original_max_position_embeddings'"),
        (
            {"rope_type": "linear", "factor": 2, "rope_theta": 1},
            r"scaling.rope_theta: expected a finite number above 1, ",
        ),
        ({"rope_theta": math.inf}, r"scaling.rope_theta: expected a finite number, got inf$"),
        ({"partial_rotary_factor": math.nan}, r"scaling.partial_rotary_factor: expected a finite number, got nan$"),
        ({"partial_rotary_factor": math.inf}, r"scaling.partial_rotary_factor: expected a finite number, got inf$"),
        (
            {"partial_rotary_factor": 1.5},
            r"scaling.partial_rotary_factor: expected a number above 0, at most 1, got 1.5$",
        ),
        (
            {"partial_rotary_factor": 0},
            r"scaling.partial_rotary_factor: expected a number above 0, at most 1, got 0.0$",
        ),
        ({**LLAMA3, "high_freq_factor": None}, r"scaling: 'llama3' needs 'high_freq_factor'"),
        (
            {**LLAMA3, "high_freq_factor": 1},
            r"scaling.high_freq_factor: expected more than low_freq_factor = 1, got 1$",
        ),
        ({**YARN, "factor": 0.5}, r"scaling.factor: expected a finite number from 1 on, got 0.5$"),
        (
            {**YARN, "original_max_position_embeddings": 0},
            r"scaling.original_max_position_embeddings: expected at least 1, got 0$",
        ),
        ({"partial_rotary_factor": 0.3}, r"rotary_dim: expected an even number from 2 to head_dim = 64, got 19$"),
    ],
)
def test_scalings_that_are_refused(scaling: dict[str, Any], text: str) -> None:
    with pytest.raises(qkv.ValueError, match="^" + text):
        Rope(64, scaling=scaling)


@pytest.mark.parametrize("original", [{}, {"original_max_position_embeddings": None}])
def test_there_is_no_factor_without_an_original_length(original: dict[str, Any]) -> None:
    with pytest.raises(qkv.ValueError, match=r"^scaling: 'yarn' needs 'factor', which is missing$"):
        Rope(64, scaling={"rope_type": "yarn", **original}, max_position=4096)


@pytest.mark.parametrize("original", [0, -1])
def test_a_factor_is_not_taken_from_an_original_length_below_1(original: int) -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": original}
    text = rf"^scaling.original_max_position_embeddings: expected at least 1, got {original}$"
    with pytest.raises(qkv.ValueError, match=text):
        Rope(64, scaling=scaling, max_position=4096)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"scaling": {"rope_type": "yarn", "original_max_position_embeddings": "2048"}, "max_position": 4096},
            r"scaling.original_max_position_embeddings: expected an int, got str '2048'",
        ),
        (
            {"scaling": {"rope_type": "yarn", "original_max_position_embeddings": 2048}, "max_position": "4096"},
            r"max_position: expected an int, got str '4096'",
        ),
        ({"scaling": {"partial_rotary_factor": "0.5"}}, r"scaling.partial_rotary_factor: expected a number, got str"),
        ({"scaling": {"partial_rotary_factor": [1]}}, r"scaling.partial_rotary_factor: expected a number, got list"),
        ({"scaling": {"partial_rotary_factor": True}}, r"scaling.partial_rotary_factor: expected a number, got bool"),
        ({"scaling": {"partial_rotary_factor": 0.5}, "head_dim": None}, r"head_dim: expected an int, got NoneType"),
        ({"scaling": {"partial_rotary_factor": 0.5}, "rotary_dim": "32"}, r"rotary_dim: expected an int, got str"),
        ({"scaling": {"rope_theta": "5e5"}}, r"scaling.rope_theta: expected a number, got str '5e5'"),
        ({"scaling": {"rope_theta": np.array([5e5])}, "base": 5e5}, r"scaling.rope_theta: expected a number, got"),
        ({"scaling": {"rope_theta": 5e5}, "base": np.array([5e5])}, r"base: expected a number, got"),
        ({"scaling": {"type": 3}}, r"scaling: type: expected a str, got int$"),
    ],
)
def test_what_is_no_number_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match="^" + text):
        Rope(**{"head_dim": 64, **options})


def test_arguments_that_are_refused() -> None:
    with pytest.raises(qkv.ValueError, match=r"^head_dim: 7 is odd; say by rotary_dim how many columns turn$"):
        Rope(7)
    with pytest.raises(qkv.ValueError, match=r"^rotary_dim: expected at most 65536, got 2147483646$"):
        Rope(2**31 - 1, rotary_dim=2**31 - 2)
    for dim in (3, 10, 0):
        with pytest.raises(qkv.ValueError, match=rf"^rotary_dim: expected an even .* to head_dim = 8, got {dim}$"):
            Rope(8, rotary_dim=dim)
    with pytest.raises(
        qkv.ValueError, match=r"^rotary_dim: 4 is given, but scaling has partial_rotary_factor 0.25: 2$"
    ):
        Rope(8, rotary_dim=4, scaling={"partial_rotary_factor": 0.25})
    with pytest.raises(qkv.ValueError, match=r"^base: 100.0 is given, but scaling has rope_theta 200.0$"):
        Rope(8, base=100.0, scaling={"rope_theta": 200.0})
    with pytest.raises(qkv.ValueError, match=r'^layout: expected "half" or "interleaved", got "neox"$'):
        Rope(8, layout="neox")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^scaling: expected a dict as a config's rope_parameters, got str$"):
        Rope(8, scaling="linear")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^scaling.factor: expected a number, got str '2'"):
        Rope(8, scaling={"rope_type": "linear", "factor": "2"})
    with pytest.raises(TypeError, match=r"^scaling.truncate: expected a bool, got int 1"):
        Rope(8, scaling={**YARN, "truncate": 1})
    with pytest.raises(TypeError, match=r"^scaling: rope_type: expected a str, got int$"):
        Rope(8, scaling={"rope_type": 3})


def test_calls_that_are_refused() -> None:
    rope = Rope(8)
    x = np.ones((2, 3, 4, 8), np.float32)
    with pytest.raises(qkv.ValueError, match=r"^first: given beside positions, which say where every row is$"):
        rope.apply(x, [0, 1, 2, 3], first=1)
    with pytest.raises(qkv.ValueError, match=r"^backward: given beside inverse; they differ by the attention factor$"):
        rope.apply(x, inverse=True, backward=True)
    with pytest.raises(
        qkv.ShapeError, match=r"^positions: expected \[n\] = \[4\] or \[batch, n\] = \[2, 4\], got \[3\]"
    ):
        rope.apply(x, [0, 1, 2])
    with pytest.raises(qkv.DtypeError, match=r"^positions: expected int32 or int64, got float64$"):
        rope.apply(x, np.zeros(4))
    with pytest.raises(TypeError, match=r"^positions: expected a sequence of ints, got int 5"):
        rope.apply(x, 5)
    with pytest.raises(qkv.ShapeError, match=r"^x: expected head_dim = 8 as the last axis, got \[2, 3, 8, 4\]$"):
        rope.apply(x.swapaxes(2, 3))
    with pytest.raises(qkv.ValueError, match=r"^out: .* shares memory with x"):
        rope.apply(x[:, :, :3], out=x[:, :, 1:])
    with pytest.raises(qkv.DtypeError, match=r"^out: expected float32, got float64$"):
        rope.apply(x, out=np.ones(x.shape))
    with pytest.raises(qkv.ValueError, match=r"^seq_len: expected at least 1, got 0$"):
        rope.apply(x, seq_len=0)
    text = r"^seq_len: expected at least 100, the largest position \+ 1, got 99$"
    for scaling in (None, {"rope_type": "dynamic", "factor": 2}):
        with pytest.raises(qkv.ValueError, match=text):
            Rope(8, scaling=scaling, max_position=8).apply(x, [99, 0, 5, -7], seq_len=99)
    with pytest.raises(qkv.ValueError, match=r"^positions: expected at most 2\^53, got 4 rows from"):
        rope.apply(x, first=2**53)
    with pytest.raises(TypeError, match=r"^x: expected a NumPy array"):
        rope.apply([1.0] * 8)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda rope: pickle.loads(pickle.dumps(rope))])
def test_copies_turn_alike(how: Callable[[Rope], Rope], rng: np.random.Generator) -> None:
    scaling = {**YARN, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    rope = Rope(64, layout="interleaved", scaling=scaling, max_position=2048)
    scaling["factor"] = 2.0  # the caller's dict; the copy is of what the rope was made of
    other = how(rope)
    x = rng.standard_normal((2, 3, 4, 64))
    assert other is not rope
    assert repr(other) == repr(rope)
    assert_same_bits(other.apply(x, first=5), rope.apply(x, first=5))
    assert_same_bits(other.frequencies(), rope.frequencies())
