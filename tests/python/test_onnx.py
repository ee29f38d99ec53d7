"""qkv.onnx: what a run of a graph or a node gives. Attention's configurations are drawn in test_onnx_random.py."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from support import assert_close, assert_same_bits, optional

import qkv

onnx: Any = optional("onnx")
if onnx:
    import ml_dtypes
    from onnx import helper
    from onnx.reference import ReferenceEvaluator
    from onnx_models import ATTENTION_OUTPUTS, attention_model, attention_node, by_function_body, make_model

    import qkv.onnx

pytestmark = pytest.mark.needs("onnx")


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def operands(rng: np.random.Generator, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    shapes = {"Q": (2, 4, 3, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 6)}
    return {name: normal(rng, *shape, dtype=dtype) for name, shape in shapes.items()}


def attend(inputs: dict[str, np.ndarray], outputs: Any = ("Y",), **options: Any) -> list[np.ndarray]:
    return qkv.onnx.run(attention_model(inputs, outputs, **options), inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_it_is_qkv_attention(dtype: str, rng: np.random.Generator) -> None:
    given = operands(rng, np.dtype(dtype))
    (y,) = attend(given, is_causal=1, scale=0.5, softcap=3.0, left_window_size=1)
    options = {"causal": True, "query_offset": 0, "scale": 0.5, "softcap": 3.0, "window": (1, None)}
    assert_same_bits(y, qkv.attention(*given.values(), **options))


def test_three_axes_are_heads_side_by_side(rng: np.random.Generator) -> None:
    given = operands(rng)
    packed = {name: x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for name, x in given.items()}
    outputs = ("Y", "present_key", "present_value")
    y, key, value = attend(packed, outputs, q_num_heads=4, kv_num_heads=2)
    assert_same_bits(y, attend(given)[0].transpose(0, 2, 1, 3).reshape(2, 3, 24))
    assert_same_bits(key, given["K"])
    assert_same_bits(value, given["V"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_decoding_with_a_past_is_prefill(dtype: str, rng: np.random.Generator) -> None:
    q, k, v = (normal(rng, 1, 2, 6, 8, dtype=np.dtype(dtype)) for _ in range(3))
    (whole,) = attend({"Q": q, "K": k, "V": v}, is_causal=1, left_window_size=3)
    key, value = k[:, :, :0], v[:, :, :0]
    steps = []
    for t in range(6):
        new = {name: x[:, :, t : t + 1] for name, x in (("Q", q), ("K", k), ("V", v))}
        given = {**new, "past_key": key, "past_value": value}
        y, key, value = attend(given, ATTENTION_OUTPUTS[:3], is_causal=1, left_window_size=3)
        steps.append(y)
    assert_same_bits(np.concatenate(steps, axis=2), whole)
    assert_same_bits(key, k)


def test_lengths_shift_causality_by_sequence(rng: np.random.Generator) -> None:
    given = operands(rng)
    given["nonpad_kv_seqlen"] = np.array([5, 2])
    (y,) = attend(given, is_causal=1)
    for b, length in enumerate((5, 2)):
        q, k, v = (given[name][b] for name in "QKV")
        expected = qkv.attention(q, k[:, :length], v[:, :length], causal=True, query_offset=length - 3)
        assert_same_bits(y[b], expected)
    assert not y[1, :, 0].any()  # its first query stands before the first key


@pytest.mark.parametrize("mode", range(4))
def test_a_row_that_sees_nothing(mode: int, rng: np.random.Generator) -> None:
    given = operands(rng)
    given["attn_mask"] = np.ones((3, 5), bool)
    given["attn_mask"][1] = False
    y, qk = attend(given, ("Y", "qk_matmul_output"), qk_matmul_output_mode=mode)
    assert not y[:, :, 1].any()
    assert y[:, :, [0, 2]].all()
    if mode == 2:
        assert np.isneginf(qk[:, :, 1]).all()
    elif mode == 3:
        assert not qk[:, :, 1].any()
    else:
        assert np.isfinite(qk).all()


def test_hidden_keys_are_absent(rng: np.random.Generator) -> None:
    given = operands(rng)
    given["attn_mask"] = np.array([[True, True, False, True, False]])
    (clean,) = attend(given)
    given["K"][:, :, [2, 4]] = given["V"][:, :, [2, 4]] = np.nan
    assert_same_bits(attend(given)[0], clean)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stages_with_everything_on(mode: int, dtype: str, rng: np.random.Generator) -> None:
    """Mode 0 is before the soft cap, as text and function body have it; onnx's own class for it shows it after."""
    given = operands(rng, np.dtype(dtype))
    given["attn_mask"] = np.where(rng.random((3, 5)) < 0.5, normal(rng, 3, 5), -np.inf).astype(given["Q"].dtype)
    options = {"softcap": 0.75, "is_causal": 1, "qk_matmul_output_mode": mode, "scale": 0.25}
    outputs = ("Y", "qk_matmul_output")
    y, qk = attend(given, outputs, **options)
    assert (y.dtype, qk.dtype) == (dtype, dtype)
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    expected = by_function_body(wide, outputs, **options)[1].astype(dtype)
    tolerance = 24 * float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(qk.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


def test_a_short_mask_by_opset(rng: np.random.Generator) -> None:
    given = operands(rng)
    given["attn_mask"] = np.array([[True]])
    assert_same_bits(attend(given, opset=23)[0], qkv.attention(*(given[name] for name in "QKV")))
    first = (given["V"][:, :, :1]).repeat(2, axis=1).repeat(3, axis=2)
    for opset in (24, 25):  # pads: the first key alone is seen
        assert_close(attend(given, opset=opset)[0], first)
        short = {**given, "attn_mask": np.zeros((3, 1), np.float32)}
        assert_close(attend(short, opset=opset)[0], first)


def test_softmax_in_double(rng: np.random.Generator) -> None:
    """The logits of float32 are then those of doubles, and Y is their result, rounded once."""
    given = operands(rng)
    (y,) = attend(given, softmax_precision=11)
    wide = qkv.attention(*(x.astype(np.float64) for x in given.values()))
    assert_same_bits(y, wide.astype(np.float32))
    for precision in (1, 10, 16):
        assert_same_bits(attend(given, softmax_precision=precision)[0], attend(given)[0])


@pytest.mark.parametrize("q_type", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("v_type", ["float32", "float64", "float16", "bfloat16"])
def test_values_of_another_type(q_type: str, v_type: str, rng: np.random.Generator) -> None:
    given = operands(rng, np.dtype(q_type))
    given["V"] = given["V"].astype(v_type)
    given["attn_mask"] = normal(rng, 3, 5, dtype=given["Q"].dtype)
    y, value = attend(given, ("Y", "present_value"))
    assert (y.dtype, value.dtype) == (q_type, v_type)
    wide = {name: x.astype(np.float64) for name, x in given.items()}
    expected = qkv.attention(*(wide[name] for name in "QKV"), bias=wide["attn_mask"])
    eps = float(ml_dtypes.finfo(q_type).eps)
    coefficient = 2 if eps > 1e-4 else 24
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=0, atol=coefficient * eps * np.abs(wide["V"]).max())


def test_no_keys_and_no_batch() -> None:
    given = {"Q": np.ones((2, 2, 3, 4), np.float32), "K": np.ones((2, 1, 0, 4), np.float32)}
    given["V"] = given["K"]
    (y,) = attend(given)
    assert y.shape == (2, 2, 3, 4)
    assert not y.any()
    assert attend({name: x[:0] for name, x in given.items()})[0].shape == (0, 2, 3, 4)


def decoder_step() -> tuple[Any, dict[str, np.ndarray]]:
    """Norm, rotation, a cache that is written in place, attention over what it holds: four kinds of nodes."""
    rng = np.random.default_rng(11)
    nodes = [
        helper.make_node("RMSNormalization", ["x", "weight"], ["normed"], name="norm", epsilon=1e-3),
        helper.make_node("RotaryEmbedding", ["normed", "cos", "sin", "positions"], ["turned"], name="turn"),
        helper.make_node("TensorScatter", ["cache_k", "turned", "starts"], ["new_k"], name="keep_k"),
        helper.make_node("TensorScatter", ["cache_v", "normed", "starts"], ["new_v"], name="keep_v", mode="circular"),
        helper.make_node("Attention", ["turned", "new_k", "new_v", "", "", "", "lengths"], ["y"], is_causal=1),
    ]
    angles = rng.uniform(0, 3, (10, 4))
    constants = {
        "weight": normal(rng, 8),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
    }
    starts = np.array([0, 3])
    inputs = {
        "x": normal(rng, 2, 2, 2, 8),
        "positions": starts[:, None] + np.arange(2),
        "cache_k": normal(rng, 2, 2, 6, 8),
        "cache_v": normal(rng, 2, 2, 6, 8),
        "starts": starts,
        "lengths": starts + 2,
    }
    return make_model(nodes, inputs, ["y", "new_k", "new_v", "x", "weight"], constants=constants), inputs


def test_a_graph_of_all_operators() -> None:
    model, inputs = decoder_step()
    before = {name: x.copy() for name, x in inputs.items()}
    results = qkv.onnx.run(model, inputs)
    for actual, expected in zip(results, ReferenceEvaluator(model).run(None, inputs), strict=True):
        assert_close(actual, expected, size=8)
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])


def test_no_result_is_an_input_or_a_constant() -> None:
    model, inputs = decoder_step()
    prepared = qkv.onnx.Backend.prepare(model)
    first = [x.copy() for x in prepared.run(inputs)]
    for output in prepared.run(inputs):
        output[...] = np.nan
    for again, expected in zip(prepared.run(inputs), first, strict=True):
        assert_same_bits(again, expected)


def test_present_is_a_copy(rng: np.random.Generator) -> None:
    given = operands(rng)
    for present in attend(given, ("Y", "present_key", "present_value"))[1:]:
        assert not any(np.shares_memory(present, array) for array in given.values())


def test_ways_to_hand_over_a_model(tmp_path: pathlib.Path) -> None:
    model, inputs = decoder_step()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    expected = qkv.onnx.run(model, inputs)
    listed = list(inputs.values())
    for results in (
        qkv.onnx.run(path, inputs),
        qkv.onnx.run(str(path), listed),
        qkv.onnx.run(path.read_bytes(), tuple(listed)),
        qkv.onnx.Backend.run_model(model, listed),
        qkv.onnx.Backend.prepare(model, "CPU").run(inputs),
    ):
        for actual, each in zip(results, expected, strict=True):
            assert_same_bits(actual, each)


def test_data_in_other_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = decoder_step()
    expected = qkv.onnx.run(model, inputs)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert onnx.load(path, load_external_data=False).graph.initializer[0].external_data
    monkeypatch.chdir(tmp_path)
    for run in (qkv.onnx.run, qkv.onnx.Backend.run_model):
        for place in (path, "model.onnx"):
            for actual, each in zip(run(place, inputs), expected, strict=True):
                assert_same_bits(actual, each)
    with pytest.raises(
        qkv.ValueError, match="keeps its data in another file; expected it in the model, or the model's"
    ):
        qkv.onnx.run(path.read_bytes(), inputs)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(qkv.ValueError, match="the initialiser 'weight' has data that do not fit its type and dim"):
        qkv.onnx.run(path, inputs)


def test_subclasses_of_arrays(rng: np.random.Generator, tmp_path: pathlib.Path) -> None:
    x, w = normal(rng, 2, 4), normal(rng, 4)
    node = helper.make_node("RMSNormalization", ["X", "w"], ["y"])
    (expected,) = qkv.onnx.Backend.run_node(node, [x, w])
    given = {"X": x.view(np.matrix), "w": np.memmap(tmp_path / "w", np.float32, "w+", shape=(4,))}
    given["w"][:] = w
    for y in (qkv.onnx.Backend.run_node(node, given)[0], qkv.onnx.run(make_model([node], given, ["y"]), given)[0]):
        assert type(y) is np.ndarray
        assert_same_bits(y, expected)


def test_an_initialiser_is_the_default_of_an_input(rng: np.random.Generator) -> None:
    given = {"X": normal(rng, 2, 4), "scale": normal(rng, 4)}
    node = helper.make_node("RMSNormalization", list(given), ["y"])
    model = make_model([node], given, ["y"], constants={"scale": np.zeros(4, np.float32)})
    assert not qkv.onnx.run(model, [given["X"]])[0].any()
    assert qkv.onnx.run(model, list(given.values()))[0].all()
    assert qkv.onnx.run(model, given)[0].all()


def test_run_node(rng: np.random.Generator) -> None:
    given = operands(rng)
    backend = qkv.onnx.Backend
    node = attention_node([*given, "nonpad_kv_seqlen"], ("Y", "qk_matmul_output"), is_causal=1)
    listed = [*given.values(), np.array([4, 5])]
    y, qk = backend.run_node(node, listed)
    named = dict(zip([*given, "nonpad_kv_seqlen"], listed, strict=True))
    assert_same_bits(backend.run_node(node, named, opset_version=24)[0], y)
    assert qk.shape == (2, 4, 3, 5)
    assert_same_bits(attend(named, is_causal=1)[0], y)
    same = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    (y,) = backend.run_node(same, {"x": given["Q"]})
    assert_same_bits(y, qkv.attention(given["Q"], given["Q"], given["Q"]))


def test_devices_and_compatibility() -> None:
    backend = qkv.onnx.Backend
    assert issubclass(backend, onnx.backend.base.Backend)
    assert [backend.supports_device(device) for device in ("CPU", "CPU:0", "CUDA", "CUDA:1")] == [
        True,
        True,
        False,
        False,
    ]
    model, _ = decoder_step()
    assert backend.is_compatible(model)
    assert not backend.is_compatible(model, "CUDA")
    model.opset_import[0].version = 22
    assert not backend.is_compatible(model)
