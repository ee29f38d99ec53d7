"""What qkv.attention returns, by what is asked for: out, lse, logits, weights, stats in this order."""

from typing import Any, Literal, TypeAlias, Unpack, overload

from numpy.typing import NDArray

from qkv._core import Cache
from qkv._types import AttentionOptions, Float, LogitsStage, Select, Stats, SupportsDLPack, Tensor

__all__ = ["attention"]

_Off: TypeAlias = Literal[False]
_On: TypeAlias = Literal[True]
_Chosen: TypeAlias = Literal[True] | Select

# fmt: off
# NumPy arrays.
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> NDArray[Float]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: None = ...,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: None = ...,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float], Stats[NDArray[Float]]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[NDArray[Float], NDArray[Float], NDArray[Float], NDArray[Float]]: ...
@overload
def attention(
    q: NDArray[Float], k: NDArray[Float] | Cache, v: NDArray[Float] | None = ..., *,
    return_lse: _On, return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[
    NDArray[Float], NDArray[Float], NDArray[Float], NDArray[Float], Stats[NDArray[Float]]
]: ...

# PyTorch tensors.
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: None = ...,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _Off = ..., return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: None = ...,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: None = ...,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: None = ...,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: LogitsStage,
    return_weights: _Off = ..., return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor, Stats[Tensor]]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _Off = ..., **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor, k: Tensor | Cache, v: Tensor | None = ..., *, return_lse: _On, return_logits: LogitsStage,
    return_weights: _Chosen, return_stats: _On, **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Stats[Tensor]]: ...

# What is known at run time alone, and objects that only have __dlpack__ (they get NumPy arrays).
@overload
def attention(
    q: SupportsDLPack, k: SupportsDLPack | Cache, v: SupportsDLPack | None = ..., *, return_lse: bool = ...,
    return_logits: LogitsStage | None = ..., return_weights: bool | Select = ..., return_stats: bool = ...,
    **options: Unpack[AttentionOptions],
) -> Any: ...
