"""How qkv.attention may be called: positions, names, defaults; its signature is what help and tools see."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits, base

import qkv

BOTH = pytest.mark.parametrize("function", [qkv.attention, qkv.reference.attention], ids=["attention", "reference"])


@BOTH
def test_signature(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    assert list(parameters)[:3] == ["q", "k", "v"]
    assert kinds[:3] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 3
    assert kinds[3:] == [inspect.Parameter.KEYWORD_ONLY] * 18
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters.values())
    assert function.__name__ == function.__qualname__ == "attention"
    assert pickle.loads(pickle.dumps(function)) is function


@BOTH
def test_defaults_of_the_signature_are_those_of_a_call(function: Callable[..., Any]) -> None:
    """The signature is in Python, and what is not given is filled in by the extension."""
    arrays = base()
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty and name != "v"  # which a cache has
    }
    expected = function(**arrays)
    assert_same_bits(function(**arrays, **defaults), expected)
    for name, default in defaults.items():
        assert_same_bits(function(**arrays, **{name: default}), expected)


@BOTH
def test_wrong_calls(function: Callable[..., Any]) -> None:
    q, k, v = base().values()
    for positional, named, text in [
        ((q,), {}, "attention() missing 1 required positional argument: 'k'"),
        (
            (q, k),
            {"causal": True},
            "v: expected a NumPy array, a PyTorch tensor or an object with __dlpack__, got NoneType",
        ),
        ((q, k, v, None), {}, "attention() takes from 2 to 3 positional arguments but 4 were given"),
        ((q, k, v), {"q": q}, "attention() got multiple values for argument 'q'"),
        ((q, k, v), {"cauzal": True}, "attention() got an unexpected keyword argument 'cauzal'"),
        ((q, k, v), {"": 1}, "attention() got an unexpected keyword argument ''"),
    ]:
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            function(*positional, **named)


@BOTH
def test_names_made_at_run_time(function: Callable[..., Any]) -> None:
    name = "".join(["cau", "sal"])
    assert sys.intern(name) is not name  # another object than the name in code, as names from a file are
    assert_same_bits(function(**base(), **{name: True}), function(**base(), causal=True))


@pytest.mark.parametrize("dtype", [np.intc, np.int_, np.longlong, np.dtype("<i4"), np.dtype("<i8")], ids=str)
def test_integers_of_c(dtype: Any) -> None:
    """NumPy has three types for two sizes."""
    assert_same_bits(qkv.attention(**base(), kv_lens=np.array([2, 5], dtype)), qkv.attention(**base(), kv_lens=[2, 5]))
