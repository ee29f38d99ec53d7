"""Arrays that cannot be used as they are: read-only, overlapping, of half precision, with gradients, not on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import DLPackOnly, base, call, optional

import qkv

torch: Any = optional("torch")
ml_dtypes: Any = optional("ml_dtypes")
needs_torch = pytest.mark.needs("torch")

F = np.float32


def tensors(**changes: Any) -> Any:
    arguments = {name: torch.from_numpy(array) for name, array in base().items()}
    return call(**{**arguments, **changes})


def test_read_only_out() -> None:
    out = np.zeros((2, 4, 3, 6), F)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: the array is read-only"):
        call(out=out)
    assert not out.any()
    with pytest.raises(TypeError, match=r"^out: this .*DLPackOnly has no writable memory"):
        qkv.attention(*map(DLPackOnly, base().values()), out=DLPackOnly(out))


def test_out_that_overlaps() -> None:
    q = np.ones((2, 4, 3, 6), F)
    k = np.ones((2, 2, 5, 6), F)
    repeated = np.lib.stride_tricks.as_strided(np.zeros((2, 4, 1, 6), F), q.shape, (96, 24, 0, 4))
    for out in (q, q[::-1], repeated):
        with pytest.raises(ValueError, match=r"^out: .*share"):
            qkv.attention(q, k, k, out=out)


def test_memory_that_is_not_whole_elements() -> None:
    packed = np.zeros((2, 4, 3, 8), [("tag", "i1"), ("x", "<f4")])["x"]
    with pytest.raises(ValueError, match=r"^q: .*stride of .* bytes|^q: .*not aligned"):
        call(q=packed)
    shifted = np.frombuffer(bytearray(2 * 4 * 3 * 8 * 4 + 1), np.uint8)[1:].view(F).reshape(2, 4, 3, 8)
    with pytest.raises(ValueError, match=r"^q: the data pointer is not aligned"):
        call(q=shifted)


@pytest.mark.needs("ml_dtypes")
def test_ml_dtypes() -> None:
    bfloat16 = np.ones((2, 4, 3, 8), ml_dtypes.bfloat16)
    with pytest.raises(
        qkv.DtypeError, match=r"^q: dtype bfloat16 is not supported.*convert it with .astype\(numpy.float32\)"
    ):
        call(q=bfloat16)
    with pytest.raises(qkv.DtypeError, match=r"^q: dtype float8_e4m3fn is not supported"):
        call(q=np.ones((2, 4, 3, 8), ml_dtypes.float8_e4m3fn))


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_tensors(dtype: str) -> None:
    q = torch.ones(2, 4, 3, 8, dtype=getattr(torch, dtype))
    with pytest.raises(qkv.DtypeError, match=rf"^q: dtype {dtype} is not supported yet, .*convert it with \.float\(\)"):
        tensors(q=q)


@needs_torch
@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "float8_e4m3fn"])
def test_other_tensors(dtype: str) -> None:
    with pytest.raises(
        qkv.DtypeError, match=rf"^q: dtype (torch\.)?{dtype} is not supported, expected float32 or float64"
    ):
        tensors(q=torch.ones(2, 4, 3, 8).to(getattr(torch, dtype)))


@needs_torch
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks", "alibi_slopes", "out"])
def test_gradients_are_not_lost(name: str) -> None:
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6), "bias": (3, 5), "out": (2, 4, 3, 6)}
    with pytest.raises(ValueError, match=rf"^{name}: requires grad, .*torch.no_grad\(\) or pass {name}.detach\(\)"):
        tensors(**{name: torch.ones(shapes.get(name, (4,)), requires_grad=True)})


@needs_torch
def test_transforms_are_not_lost() -> None:
    arrays = [torch.from_numpy(array) for array in base().values()]
    with pytest.raises((ValueError, TypeError, RuntimeError), match=r"q: "):
        torch.func.grad(lambda q: qkv.attention(q, *arrays[1:]).sum())(arrays[0])
    with pytest.raises((ValueError, TypeError, RuntimeError), match=r"q: "):
        torch.func.vmap(lambda q: qkv.attention(q, q, q))(arrays[0])


@needs_torch
def test_lazy_views() -> None:
    negated = torch.complex(torch.ones(2, 4, 3, 8), torch.ones(2, 4, 3, 8)).conj().imag
    assert negated.is_neg()
    with pytest.raises(ValueError, match=r"^q: a lazily negated view .*pass q.resolve_neg\(\)"):
        tensors(q=negated)
    with pytest.raises(qkv.DtypeError, match=r"^q: dtype torch.complex64"):
        tensors(q=torch.ones(2, 4, 3, 8, dtype=torch.complex64).conj())


@needs_torch
def test_tensors_without_readable_memory() -> None:
    with pytest.raises(ValueError, match=r"^q: a tensor on device meta, expected one on the CPU"):
        tensors(q=torch.ones(2, 4, 3, 8, device="meta"))
    with pytest.raises(ValueError, match=r"^q: a tensor of layout torch.sparse_coo, .*\.to_dense\(\)"):
        tensors(q=torch.ones(2, 4, 3, 8).to_sparse())
    with pytest.raises(ValueError, match=r"^mask: a tensor on device meta"):
        tensors(mask=torch.ones(3, 5, dtype=torch.bool, device="meta"))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2, 4, 3, 8))
    with pytest.raises((ValueError, TypeError), match=r"^q: "):
        tensors(q=fake)


@needs_torch
def test_mixed_kinds() -> None:
    with pytest.raises(
        TypeError, match=r"^k: a NumPy array, but q is a PyTorch tensor; all arrays of a call are of one kind"
    ):
        tensors(k=base()["k"])
    with pytest.raises(TypeError, match=r"^mask: a PyTorch tensor, but q is a NumPy array"):
        call(mask=torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"^kv_lens: a NumPy array, but q is a PyTorch tensor"):
        tensors(kv_lens=np.array([1, 2]))
    with pytest.raises(TypeError, match=r"^out: a NumPy array, but q is a PyTorch tensor"):
        tensors(out=np.zeros((2, 4, 3, 6), F))


def test_dlpack_object_that_refuses() -> None:
    class Broken(DLPackOnly):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("no")

    with pytest.raises(TypeError, match=r"^q: this .*Broken has no memory on the CPU that DLPack can hand over"):
        call(q=Broken(base()["q"]))
