"""Memory: read where it lies, whatever its strides, from NumPy, PyTorch and DLPack; nothing is copied, nothing kept."""

from __future__ import annotations

import gc
import resource
import weakref
from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, assert_same_bits, optional, strided

import qkv

torch: Any = optional("torch")
needs_torch = pytest.mark.needs("torch")
LAYOUTS = ["heads_last", "dim_major", "negative", "gaps"]


def inputs(rng: np.random.Generator, dtype: Any = np.float32) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(dtype) for shape in ((2, 4, 6, 8), (2, 2, 7, 8), (2, 2, 7, 5))]


@pytest.mark.parametrize("how", LAYOUTS)
def test_strides(how: str, target: str, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    mask, bias = rng.random((2, 4, 6, 7)) < 0.7, rng.standard_normal((2, 4, 6, 7)).astype(np.float32)
    expected = qkv.attention(*arrays, mask=mask, bias=bias)
    others = [strided(array, rng, how) for array in (*arrays, bias)]
    flipped = mask[:, :, ::-1].copy()[:, :, ::-1]
    assert_same_bits(qkv.attention(*others[:3], mask=flipped, bias=others[3]), expected)


@needs_torch
@pytest.mark.parametrize("how", ["heads_last", "dim_major", "gaps"])
def test_strides_of_tensors(how: str, target: str, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    tensors = [torch.from_numpy(strided(array, rng, how)) for array in arrays]
    assert not any(tensor.is_contiguous() for tensor in tensors)
    assert_same_bits(qkv.attention(*tensors).numpy(), qkv.attention(*arrays))


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_torch), "dlpack"])
def test_stride_zero(kind: str, rng: np.random.Generator) -> None:
    q, k, v = inputs(rng)
    expected = qkv.attention(q, k[:1].repeat(2, 0), v[:1].repeat(2, 0))
    wrap = {"numpy": np.asarray, "torch": getattr(torch, "from_numpy", None), "dlpack": DLPackOnly}[kind]
    repeated = [np.lib.stride_tricks.as_strided(a, a.shape, (0, *a.strides[1:])) for a in (k, v)]
    assert_same_bits(np.asarray(qkv.attention(*map(wrap, (q, *repeated)))), expected)


@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (1, 2, 1, 8), (2, 1, 5, 1), (1, 1, 0, 8)])
def test_strides_that_lead_nowhere(shape: tuple[int, ...], target: str, rng: np.random.Generator) -> None:
    """NumPy lets the stride of an axis of extent 1, and all strides of an empty array, be anything."""
    array = rng.standard_normal(shape).astype(np.float32)
    anything = (2**61 + 1, -7, 2**40 + 3, -(2**50) - 1)
    strides = [
        stride if extent > 1 and array.size else other
        for extent, stride, other in zip(shape, array.strides, anything, strict=True)
    ]
    odd = np.lib.stride_tricks.as_strided(array, shape, strides)
    assert_same_bits(qkv.attention(odd, odd, odd), qkv.attention(array, array, array))


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_torch), "dlpack"])
def test_memory_is_read_in_place(kind: str, rng: np.random.Generator) -> None:
    """A hidden copy would need as much memory as k and v, which are made of one small row."""
    keys = 2**22
    row = rng.standard_normal((1, 1, 1, 64)).astype(np.float32)
    q = row.copy()
    wide = np.lib.stride_tricks.as_strided(row, (1, 1, keys, 64), (0, 0, 0, 4))
    wrap = {"numpy": np.asarray, "torch": getattr(torch, "from_numpy", None), "dlpack": DLPackOnly}[kind]
    arguments = [wrap(a) for a in (q, wide, wide)]
    before = most_memory()
    out = qkv.attention(*arguments, kv_lens=[3])
    np.testing.assert_allclose(np.asarray(out), row, rtol=1e-6)
    assert most_memory() - before < wide.nbytes / 8


def most_memory() -> int:
    """The largest size in memory that the process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_views_of_one_array(rng: np.random.Generator) -> None:
    packed = rng.standard_normal((2, 6, 3, 4, 8)).astype(np.float32)  # [batch, length, (q, k, v), heads, dim]
    q, k, v = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    assert_same_bits(qkv.attention(q, k, v), qkv.attention(q.copy(), k.copy(), v.copy()))


def test_read_only_inputs(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    expected = qkv.attention(*arrays)
    for array in arrays:
        array.flags.writeable = False
    assert_same_bits(qkv.attention(*arrays), expected)


def test_subclasses_of_ndarray(tmp_path: Any, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    mapped = []
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
        mapped.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    out = qkv.attention(*mapped)
    assert type(out) is np.ndarray
    assert_same_bits(out, qkv.attention(*arrays))


@needs_torch
def test_parameters_and_subclasses_of_tensor(rng: np.random.Generator) -> None:
    class Named(torch.Tensor):
        pass

    arrays = inputs(rng)
    with torch.no_grad():
        out = qkv.attention(*(torch.nn.Parameter(torch.from_numpy(array)) for array in arrays))
    assert type(out) is torch.Tensor
    assert not out.requires_grad
    assert_same_bits(out.numpy(), qkv.attention(*arrays))
    assert_same_bits(
        qkv.attention(*(torch.from_numpy(array).as_subclass(Named) for array in arrays)).numpy(), qkv.attention(*arrays)
    )


@needs_torch
def test_tensors_without_the_exchange_api(rng: np.random.Generator) -> None:
    """PyTorch before 2.9 has no table of C functions: what its methods say is taken then."""

    class Old(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    arrays = inputs(rng)
    tensors = [torch.from_numpy(strided(array, rng, "gaps")).as_subclass(Old) for array in arrays]
    out = qkv.attention(*tensors)
    assert type(out) is torch.Tensor
    assert_same_bits(out.numpy(), qkv.attention(*arrays))
    assert qkv.attention(tensors[0].requires_grad_(), *tensors[1:]).requires_grad
    with torch.no_grad():
        assert_same_bits(qkv.attention(*tensors).numpy(), out.numpy())
    written = torch.zeros(out.shape).as_subclass(Old)
    assert qkv.attention(*(t.detach() for t in tensors), out=written) is written
    assert_same_bits(written.numpy(), out.numpy())


@pytest.mark.needs("torch", "2.13.0")
def test_the_exchange_api_is_there() -> None:
    """Guards the quick path: without this attribute the tests above would all take the slow one."""
    assert "dlpack_exchange_api" in repr(torch.Tensor.__dlpack_c_exchange_api__)


@needs_torch
@pytest.mark.parametrize("context", ["no_grad", "inference_mode"])
def test_gradient_modes(context: str, rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    tensors = [torch.from_numpy(array).requires_grad_() for array in arrays]
    with getattr(torch, context)():
        out = qkv.attention(*tensors, out=torch.empty(2, 4, 6, 5))
    assert_same_bits(out.numpy(), qkv.attention(*arrays))


@needs_torch
def test_default_device_and_dtype_do_not_matter(rng: np.random.Generator) -> None:
    tensors = [torch.from_numpy(array) for array in inputs(rng)]
    expected = qkv.attention(*tensors)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            out, lse = qkv.attention(*tensors, return_lse=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.device.type == lse.device.type == "cpu"
    assert out.dtype == lse.dtype == torch.float32
    assert_same_bits(out.numpy(), expected.numpy())


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_torch), "dlpack"])
def test_nothing_is_kept(kind: str, rng: np.random.Generator) -> None:
    class Array(np.ndarray):
        pass

    def run() -> list[Any]:
        arrays = [array.view(Array) for array in inputs(rng)]
        wrapped = {"numpy": lambda a: a, "dlpack": DLPackOnly, "torch": lambda a: torch.from_numpy(np.asarray(a))}[kind]
        objects = [wrapped(array) for array in arrays]
        qkv.attention(*objects, return_lse=True)
        with pytest.raises(qkv.ShapeError):
            qkv.attention(*objects, mask=wrapped(np.ones((9, 9), bool).view(Array)))
        return [weakref.ref(each) for each in (*objects, *arrays)]

    references = run()
    gc.collect()
    alive = [reference() for reference in references if reference() is not None]
    assert not alive


def test_results_are_independent(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    first = qkv.attention(*arrays)
    kept = first.copy()
    second = qkv.attention(*arrays)
    assert not np.shares_memory(first, second)
    second[...] = 0
    assert_same_bits(first, kept)
    assert first.flags.owndata
    assert first.flags.writeable
    assert first.flags.c_contiguous


def test_huge_views_of_little_memory(rng: np.random.Generator) -> None:
    """2^31 mask elements that are one byte, and offsets beyond 2^32 elements."""
    q = rng.standard_normal((2**16, 4)).astype(np.float32)
    mask = np.broadcast_to(np.True_, (2**16, 2**15))
    k = np.broadcast_to(q[:1], (2**15, 4))
    out = qkv.attention(q[:4], k, k, mask=mask[:4], window=(2, 0), query_offset=2**15 - 4)
    np.testing.assert_allclose(out, np.broadcast_to(q[:1], (4, 4)), rtol=1e-6)


@needs_torch
def test_bias_and_sinks_of_tensors(rng: np.random.Generator) -> None:
    arrays = inputs(rng)
    options = {
        "bias": rng.standard_normal((4, 1, 7)).astype(np.float32), "sinks": rng.standard_normal(4).astype(np.float32),
        "alibi_slopes": rng.random((2, 4)).astype(np.float32), "mask": rng.random((6, 7)) < 0.8,
    }  # fmt: skip
    expected = qkv.attention(*arrays, **options)
    tensors = {name: torch.from_numpy(array) for name, array in options.items()}
    assert_same_bits(qkv.attention(*map(torch.from_numpy, arrays), **tensors).numpy(), expected)
    wrapped = {name: DLPackOnly(array) for name, array in options.items()}
    assert_same_bits(qkv.attention(*map(DLPackOnly, arrays), **wrapped), expected)
