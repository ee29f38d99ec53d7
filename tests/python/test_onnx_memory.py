"""qkv.onnx: memory does not grow with the depth of a graph, and operators do not widen whole arrays."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import assert_same_bits, ones, optional

onnx: Any = optional("onnx")
if onnx:
    import ml_dtypes
    from onnx import helper
    from onnx_models import make_model

    import qkv.onnx
    from qkv.onnx import _layout
    from qkv.onnx._operator import rounded

pytestmark = pytest.mark.needs("onnx")

MB = 1 << 20
#: What a few blocks of doubles take.
BLOCKS = 6 * MB


def peak_of(run: Callable[[], Any]) -> int:
    """The most that NumPy held at once meanwhile, the result included."""
    tracemalloc.start()
    try:
        result = run()
        return tracemalloc.get_traced_memory()[1] if result is not None else 0
    finally:
        tracemalloc.stop()


def node_runner(operator: str, arrays: list[np.ndarray], **attributes: Any) -> Callable[[], Any]:
    node = helper.make_node(operator, [f"i{index}" for index in range(len(arrays))], ["y"], **attributes)
    return lambda: qkv.onnx.Backend.run_node(node, arrays)


def rotation(shape: tuple[int, ...], dtype: Any = np.float16) -> list[np.ndarray]:
    """X, cos_cache, sin_cache and position_ids of RotaryEmbedding."""
    rng = np.random.default_rng(3)
    batch, _, length, dim = shape
    caches = rng.standard_normal((2, length, dim // 2)).astype(dtype)
    return [rng.standard_normal(shape).astype(dtype), *caches, rng.integers(0, length, (batch, length))]


def test_a_deep_graph() -> None:
    depth, x = 24, {"t0": ones(512, 512)}
    nodes = [helper.make_node("RMSNormalization", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(depth)]
    model = make_model(nodes, x, ["t3", f"t{depth}"], constants={"w": ones(512)})
    prepared = qkv.onnx.Backend.prepare(model)
    assert peak_of(lambda: prepared.run(x)) < 4 * MB + BLOCKS
    third, last = prepared.run(x)
    assert_same_bits(third, qkv.onnx.run(make_model(nodes[:3], x, ["t3"], constants={"w": ones(512)}), x)[0])
    assert last.shape == (512, 512)


def test_norm_in_blocks() -> None:
    x = ones(4096, 1024, dtype=np.float16)
    assert peak_of(node_runner("RMSNormalization", [x, ones(1024, dtype=np.float16)])) < x.nbytes + BLOCKS


def test_rotation_in_blocks() -> None:
    arrays = rotation((1, 16, 2048, 128))
    assert peak_of(node_runner("RotaryEmbedding", arrays)) < arrays[0].nbytes + BLOCKS


def test_rounding_in_blocks() -> None:
    wide = np.ones((4, MB))
    assert peak_of(lambda: rounded(wide, np.dtype(ml_dtypes.bfloat16))) < wide.nbytes // 4 + BLOCKS


@pytest.mark.parametrize("whole", [0, 1, 2])
@pytest.mark.parametrize("shape", [(), (1,), (9,), (3, 5), (2, 3, 4), (3, 1, 5, 7), (2, 0, 3), (0, 4), (40, 2)])
def test_blocks_are_the_array(shape: tuple[int, ...], whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layout, "_BLOCK", 8)
    whole = min(whole, len(shape))
    times = np.zeros(shape, int)
    for index in _layout.blocks(shape, whole):
        block = times[index]
        assert block.shape[block.ndim - whole :] == shape[len(shape) - whole :]
        assert block.size <= max(8, np.prod(shape[len(shape) - whole :]))
        block += 1
    assert (times == 1).all()


@pytest.mark.parametrize("axis", [1, 2, -1])
@pytest.mark.parametrize("scale", [(6,), (4, 5, 6), (2, 3, 1, 5, 6)])
def test_blocks_do_not_change_a_norm(axis: int, scale: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    run = node_runner("RMSNormalization", [rng.standard_normal((2, 3, 4, 5, 6)), rng.standard_normal(scale)], axis=axis)
    (expected,) = run()
    monkeypatch.setattr(_layout, "_BLOCK", 8)
    np.testing.assert_allclose(run()[0], expected, rtol=1e-14)


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_blocks_do_not_change_a_rotation(positions: bool, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, cos, sin, ids = rotation((2, 3, 7, 8), np.float32)
    angles = [cos, sin, ids] if positions else [cos[ids], sin[ids]]
    attributes = {"num_heads": 3} if packed else {}
    run = node_runner("RotaryEmbedding", [x.reshape(2, 7, 24) if packed else x, *angles], **attributes)
    (expected,) = run()
    monkeypatch.setattr(_layout, "_BLOCK", 50)
    assert_same_bits(run()[0], expected)
