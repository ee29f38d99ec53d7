"""Arrays that cannot be used as they are: read-only, overlapping, of half precision, with gradients, not on the CPU."""

from __future__ import annotations

import itertools
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


@needs_torch
@pytest.mark.parametrize("option", ["scale", "softcap"])
def test_a_learned_number_is_refused(option: str) -> None:
    number = torch.tensor(0.3, requires_grad=True)
    with pytest.raises(qkv.ValueError, match=rf"^{option}: requires grad, and its gradient would be lost"):
        tensors(**{option: number})
    with torch.no_grad():
        assert torch.equal(tensors(**{option: number}), tensors(**{option: float(number)}))


@needs_torch
def test_a_trace_is_refused() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(qkv.ValueError, match=r"^q: the call is traced \(torch.jit.trace, make_fx, "):
        torch.jit.trace(lambda x: qkv.attention(x, x, x), x, check_trace=False)
    with pytest.raises(qkv.ValueError, match=r"^q: the call is traced"):
        make_fx(lambda x: qkv.attention(x, x, x))(x)
    with pytest.raises(qkv.ValueError, match=r"^outs\[0\]: the call is traced"):
        make_fx(lambda x: qkv.merge_states([x], [x[..., 0].contiguous()])[0])(x)
    assert torch.equal(qkv.attention(x, x, x), x)


def test_read_only_out() -> None:
    out = np.zeros((2, 4, 3, 6), F)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: the array is read-only"):
        call(out=out)
    assert not out.any()
    with pytest.raises(TypeError, match=r"^out: this .*DLPackOnly has no writable memory"):
        qkv.attention(*map(DLPackOnly, base().values()), out=DLPackOnly(out))


def test_out_that_numpy_will_make_read_only() -> None:
    """What numpy.broadcast_arrays returns says that it is writeable, and is not meant to be written."""
    memory = np.zeros((2, 4, 3, 6), F)
    out, _ = np.broadcast_arrays(memory, np.zeros((5, 1, 1, 1, 1), F))
    with pytest.raises(ValueError, match=r"^out: the array is read-only"):
        call(out=out[0])
    assert not memory.any()


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
    with pytest.raises(qkv.DtypeError, match=r"^q: dtype float8_e4m3fn is not supported"):
        call(q=np.ones((2, 4, 3, 8), ml_dtypes.float8_e4m3fn))


@needs_torch
@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "float8_e4m3fn"])
def test_other_tensors(dtype: str) -> None:
    with pytest.raises(
        qkv.DtypeError, match=rf"^q: dtype (torch\.)?{dtype} is not supported, expected float32, float64, "
    ):
        tensors(q=torch.ones(2, 4, 3, 8).to(getattr(torch, dtype)))


@needs_torch
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks", "alibi_slopes", "out"])
def test_gradients_are_not_lost(name: str) -> None:
    """Those that there are go through qkv.torch; the reference has none of them."""
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6), "bias": (3, 5), "out": (2, 4, 3, 6)}
    leaf = torch.ones(shapes.get(name, (4,)), requires_grad=True)
    text = rf"^{name}: requires grad, .*torch.no_grad\(\) or pass {name}.detach\(\)"
    arguments = {one: torch.from_numpy(array) for one, array in base().items()} | {name: leaf}
    with pytest.raises(ValueError, match=text):
        qkv.reference.attention(**arguments)
    if name in ("alibi_slopes", "out"):
        with pytest.raises(ValueError, match=text):
            tensors(**{name: leaf})
    else:
        tensors(**{name: leaf}).sum().backward()
        assert leaf.grad is not None


@needs_torch
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks", "alibi_slopes", "out"])
def test_tangents_are_not_lost(name: str) -> None:
    forward_ad = torch.autograd.forward_ad
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "v": (2, 2, 5, 6), "bias": (3, 5), "out": (2, 4, 3, 6)}
    plain = torch.ones(shapes.get(name, (4,)))
    text = rf"^{name}: a dual tensor, .*; pass torch\.autograd\.forward_ad\.unpack_dual\({name}\)\.primal$"
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(plain, torch.ones_like(plain))
        for mode in (torch.enable_grad(), torch.no_grad()):
            with mode, pytest.raises(qkv.ValueError, match=text):
                tensors(**{name: dual})
        tensors(**{name: forward_ad.unpack_dual(dual).primal})
        tensors(**{name: plain.clone()})
    tensors(**{name: dual})  # the tangents of a level end with it
    with forward_ad.dual_level(), pytest.raises(qkv.ValueError, match=r"^outs\[0\]: a dual tensor"):
        qkv.merge_states([forward_ad.make_dual(torch.ones(2, 3), torch.ones(2, 3))], [torch.ones(2)])


def one_short_line(error: BaseException) -> bool:
    return str(error).isprintable() and len(str(error)) < 200


@needs_torch
@pytest.mark.parametrize(
    ("transform", "name"),
    [
        *itertools.product(("vmap", "functionalize"), ("q", "k", "mask", "out")),
        *itertools.product(("jvp", "grad", "hessian", "linearize"), ("q", "k", "out")),
    ],
)
def test_inside_a_transform(transform: str, name: str) -> None:
    shapes = {"q": (2, 4, 3, 8), "k": (2, 2, 5, 8), "mask": (3, 5), "out": (2, 4, 3, 6)}
    argument = torch.ones(shapes[name], dtype=torch.bool if name == "mask" else torch.float32)

    others = {one: torch.from_numpy(array) for one, array in base().items()}  # made in there, all would be wrapped

    def attend(changed: Any) -> Any:
        return call(**{**others, name: changed}).sum()

    run = {
        "vmap": lambda: torch.func.vmap(attend)(argument[None].clone()),
        "jvp": lambda: torch.func.jvp(attend, (argument,), (argument.clone(),)),
        "linearize": lambda: torch.func.linearize(attend, argument),
    }.get(transform, lambda: getattr(torch.func, transform)(attend)(argument))
    seen = rf"^{name}: (a tensor inside a torch.func|a dual|requires grad)"
    if transform == "linearize":  # the whole call is refused
        seen = r"^q: the call is traced"
    with pytest.raises(qkv.ValueError, match=seen) as info:
        run()
    assert one_short_line(info.value)


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


@needs_torch
def test_fake_tensors(capfd: pytest.CaptureFixture[str]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2, 4, 3, 8))
    text = r"FakeTensor has a shape but no data, expected a tensor with values$"
    with pytest.raises(qkv.ValueError, match=r"^q: this .*" + text):
        tensors(q=fake)
    real = {name: torch.from_numpy(array) for name, array in base().items()}
    with FakeTensorMode(), pytest.raises(qkv.ValueError, match=r"^result: this .*" + text):
        call(**real)
    assert capfd.readouterr().err == ""  # PyTorch warns there where its data are looked for


@needs_torch
@pytest.mark.filterwarnings("ignore")  # nested, CSR and quantized tensors are all beta, or on their way out
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nested", "a nested tensor, expected a dense one; convert it with .to_padded_tensor(0) and pass kv_lens"),
        ("jagged", "a nested tensor, expected a dense one; convert it with .to_padded_tensor(0) and pass kv_lens"),
        ("csr", "a tensor of layout torch.sparse_csr, expected torch.strided; convert it with .to_dense()"),
        ("coo", "a tensor of layout torch.sparse_coo, expected torch.strided; convert it with .to_dense()"),
        ("meta", "a tensor on device meta, expected one on the CPU (meta tensors have no data)"),
        (
            "quantized",
            "dtype torch.quint8 is not supported, expected float32, float64, float16 or bfloat16; "
            "convert it with .dequantize()",
        ),
    ],
)
def test_other_kinds_of_tensors(kind: str, text: str) -> None:
    rows = [torch.ones(2, 8), torch.ones(3, 8)]
    made = {
        "nested": lambda: torch.nested.nested_tensor(rows),
        "jagged": lambda: torch.nested.nested_tensor(rows, layout=torch.jagged),
        "csr": lambda: rows[0].to_sparse_csr(),
        "coo": lambda: rows[0].to_sparse(),
        "meta": lambda: rows[0].to("meta"),
        "quantized": lambda: torch.quantize_per_tensor(rows[0], 0.1, 0, torch.quint8),
    }[kind]()
    with pytest.raises((qkv.ValueError, qkv.DtypeError)) as info:
        tensors(q=made)
    assert str(info.value) == f"q: {text}"


@needs_torch
def test_tensors_that_are_no_numbers() -> None:
    for bad in (torch.tensor(True), torch.tensor([1])):
        with pytest.raises(TypeError, match=r"^kv_lens: expected ints in the sequence, got torch.Tensor$"):
            call(kv_lens=[bad, 1])
        with pytest.raises(TypeError, match=r"^scale: expected a number, got torch.Tensor$"):
            call(scale=bad)
        with pytest.raises(TypeError, match=r"^Select.heads: expected ints in the sequence, got torch.Tensor$"):
            qkv.Select(heads=[bad])
    assert qkv.Select(heads=torch.tensor([1, 0])).heads == (1, 0)


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


class Exports(DLPackOnly):
    """Raises in one of DLPack's methods; counts the calls of __dlpack__."""

    def __init__(self, method: str, error: BaseException) -> None:
        super().__init__(base()["q"])
        self.method, self.error, self.calls = method, error, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.calls += 1
        if self.method == "__dlpack__":
            raise self.error
        return super().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        if self.method == "__dlpack_device__":
            raise self.error
        return super().__dlpack_device__()


METHODS = ["__dlpack__", "__dlpack_device__"]


def attend_to_dlpack(q: Any) -> Any:
    arrays = base()
    return qkv.attention(q, DLPackOnly(arrays["k"]), DLPackOnly(arrays["v"]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), SystemExit(3), GeneratorExit(), MemoryError()], ids=repr)
def test_interrupts_go_through(error: BaseException, method: str) -> None:
    with pytest.raises(type(error)) as info:
        attend_to_dlpack(Exports(method, error))
    assert info.value is error


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [RuntimeError("busy\nframe 1"), BufferError("no"), TypeError("t")], ids=repr)
def test_what_dlpack_raises_is_the_cause(error: Exception, method: str) -> None:
    said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    with pytest.raises(TypeError) as info:
        attend_to_dlpack(Exports(method, error))
    text = str(info.value)
    assert text.startswith("q: this ")
    assert text.endswith(f"Exports has no memory on the CPU that DLPack can hand over ({said})")
    assert info.value.__cause__ is error


def test_dlpack_is_asked_once() -> None:
    good = Exports("none", RuntimeError())
    attend_to_dlpack(good)
    assert good.calls == 1


def test_dlpack_without_a_device_method(rng: np.random.Generator) -> None:
    class Bare:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self) -> Any:
            return self.array.__dlpack__()

    arrays = [rng.standard_normal(array.shape).astype(F) for array in base().values()]
    np.testing.assert_array_equal(qkv.attention(*map(Bare, arrays)), qkv.attention(*arrays))


def test_dlpack_that_is_not_on_the_cpu() -> None:
    class Elsewhere(Exports):
        def __dlpack_device__(self) -> Any:
            return (2, 0)

    far = Elsewhere("none", RuntimeError())
    with pytest.raises(qkv.ValueError, match=r"^q: memory on DLPack device type 2, expected the CPU \(1\)$"):
        attend_to_dlpack(far)
    assert far.calls == 0


@pytest.mark.parametrize("device", [(2**40, 0), ("x", 0), (1.5, 0), (None, 0)])
def test_dlpack_device_that_is_no_number(device: Any) -> None:
    class Odd(Exports):
        def __dlpack_device__(self) -> Any:
            return device

    with pytest.raises(
        TypeError, match=r"^q: __dlpack_device__\(\) gave \(.*, 0\), expected \(device type, device id\)$"
    ):
        attend_to_dlpack(Odd("none", RuntimeError()))


@pytest.mark.parametrize("answer", [None, b"", object()])
def test_dlpack_that_gives_no_capsule(answer: Any) -> None:
    class Wrong(DLPackOnly):
        def __dlpack__(self, **options: Any) -> Any:
            return answer

    with pytest.raises(TypeError, match=r"^q: this .*Wrong has no memory on the CPU that DLPack can hand over$"):
        attend_to_dlpack(Wrong(base()["q"]))
