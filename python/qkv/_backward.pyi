"""What the backward functions return, by the kind of their arrays."""

from collections.abc import Iterable
from typing import Any, Unpack, overload

from numpy.typing import NDArray

from qkv._types import BackwardOptions, Float, Gradients, SupportsDLPack, Tensor

__all__ = ["attention_backward", "attention_varlen_backward"]

# fmt: off
@overload
def attention_backward(
    grad_out: NDArray[Float], q: NDArray[Float], k: NDArray[Float], v: NDArray[Float],
    out: NDArray[Float], lse: NDArray[Float], **options: Unpack[BackwardOptions],
) -> Gradients[NDArray[Float]]: ...
@overload
def attention_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, lse: Tensor, **options: Unpack[BackwardOptions],
) -> Gradients[Tensor]: ...
@overload
def attention_backward(
    grad_out: SupportsDLPack, q: SupportsDLPack, k: SupportsDLPack, v: SupportsDLPack,
    out: SupportsDLPack, lse: SupportsDLPack, **options: Unpack[BackwardOptions],
) -> Gradients[Any]: ...
@overload
def attention_varlen_backward(
    grad_out: NDArray[Float], q: NDArray[Float], k: NDArray[Float], v: NDArray[Float],
    out: NDArray[Float], lse: NDArray[Float], cu_seqlens_q: Iterable[int] | SupportsDLPack,
    cu_seqlens_k: Iterable[int] | SupportsDLPack, **options: Unpack[BackwardOptions],
) -> Gradients[NDArray[Float]]: ...
@overload
def attention_varlen_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor,
    out: Tensor, lse: Tensor, cu_seqlens_q: Iterable[int] | SupportsDLPack,
    cu_seqlens_k: Iterable[int] | SupportsDLPack, **options: Unpack[BackwardOptions],
) -> Gradients[Tensor]: ...
@overload
def attention_varlen_backward(
    grad_out: SupportsDLPack, q: SupportsDLPack, k: SupportsDLPack, v: SupportsDLPack,
    out: SupportsDLPack, lse: SupportsDLPack, cu_seqlens_q: Iterable[int] | SupportsDLPack,
    cu_seqlens_k: Iterable[int] | SupportsDLPack, **options: Unpack[BackwardOptions],
) -> Gradients[Any]: ...
