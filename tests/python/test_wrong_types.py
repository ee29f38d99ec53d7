"""Every argument of every public function with things that it does not take: an error that names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import base

import qkv

WRONG: dict[str, Any] = {"None": None, "int": 1, "str": "x", "bytes": b"x", "object": object(), "list": []}

OUT, LSE = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 3), np.float32)

#: What each function is called with; what the arguments are called in errors where that is another name.
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (qkv.attention, {**base(), "return_stats": True}),
    "reference.attention": (qkv.reference.attention, {**base(), "return_stats": True}),
    "merge_states": (qkv.merge_states, {"outs": [OUT], "lses": [LSE]}),
    "masks.padding": (qkv.masks.padding, {"lengths": [1, 0], "n": 3}),
    "masks.causal": (qkv.masks.causal, {"q_len": 2, "kv_len": 3}),
    "set_num_threads": (qkv.set_num_threads, {"num_threads": 1}),
    "set_target": (qkv.set_target, {"name": qkv.target()}),
    "Select": (qkv.Select, {}),
}

#: What is legal although it stands in WRONG.
LEGAL = {
    *((f, argument, "None") for f, argument in [
        ("masks.causal", "query_offset"), ("merge_states", "sinks"), ("Select", "heads"), ("Select", "rows"),
    ]),
    *((f, argument, "None") for f in ("attention", "reference.attention") for argument in (
        "mask", "bias", "query_offset", "window", "scale", "sinks", "alibi_slopes", "kv_lens", "seed", "return_logits",
        "stats_keys", "out",
    )),
    *((f, argument, "int") for f in ("attention", "reference.attention") for argument in (
        "query_offset", "scale", "softcap", "kv_lens", "seed", "stats_keys",
    )),
    *((f, "stats_keys", "list") for f in ("attention", "reference.attention")),
    *(("masks.causal", argument, "int") for argument in ("q_len", "kv_len", "query_offset")),
    ("masks.padding", "lengths", "int"), ("masks.padding", "lengths", "list"), ("masks.padding", "n", "int"),
    ("Select", "heads", "list"), ("Select", "rows", "list"), ("set_num_threads", "num_threads", "int"),
}  # fmt: skip

CASES = [(f, argument) for f, (function, _) in FUNCTIONS.items() for argument in inspect.signature(function).parameters]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_wrong_types(name: str, argument: str) -> None:
    function, arguments = FUNCTIONS[name]
    threads = qkv.num_threads()
    refused = 0
    for kind, wrong in WRONG.items():
        if (name, argument, kind) in LEGAL:
            function(**{**arguments, argument: wrong})
            continue
        with pytest.raises((TypeError, ValueError)) as info:
            function(**{**arguments, argument: wrong})
        text = str(info.value)
        shown = f"Select.{argument}" if name == "Select" else argument
        assert text.startswith((f"{shown}: ", f"{shown}[0]: ")), (kind, text)
        assert text.isprintable()
        assert len(text) < 200, (kind, text)
        assert isinstance(info.value, qkv.Error) or type(info.value) is TypeError, (kind, text)
        refused += 1
    qkv.set_num_threads(threads)
    assert refused >= 3


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_types_in_the_lists_of_merge_states(kind: str, place: int) -> None:
    lists: list[list[Any]] = [[OUT, OUT], [LSE, LSE]]
    lists[place][1] = WRONG[kind]
    with pytest.raises(TypeError, match=rf"^{('outs', 'lses')[place]}\[1\]: expected a NumPy array, .*, got ") as info:
        qkv.merge_states(*lists)
    assert str(info.value).isprintable()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_arguments(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        function(**arguments, nonsense=1)
