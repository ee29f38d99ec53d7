"""What both functions on tensors look at before and after a call: the short way, and why a call failed."""

from __future__ import annotations

from typing import Any, Final

import torch

__all__ = ["explain", "is_plain", "new_seed", "refuse_transforms"]

_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))

# Parts of torch without types.
_compiler: Final[Any] = torch.compiler
_C: Final[Any] = torch._C
_functorch: Final[Any] = torch._C._functorch


def is_plain(*tensors: Any) -> bool:
    """Whether a call may go to the library as it is: nothing traces, records, casts or intercepts it.

    It then takes a third of the time that the dispatcher would need on the way to the same function.
    """
    if (
        _compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or torch.is_autocast_enabled("cpu")
        or _C._get_tracing_state() is not None
        or _functorch.peek_interpreter_stack() is not None
    ):
        return False
    recorded = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN or not tensor.is_cpu or (recorded and tensor.requires_grad):
            return False
    return True


def refuse_transforms() -> None:
    """Derivatives by torch.func would be obscure errors, or silently 0; vmap calls an operator for each example."""
    if _functorch.peek_interpreter_stack() is None:
        return
    for transform in _functorch.get_interpreter_stack():
        if transform.key() in (_functorch.TransformType.Grad, _functorch.TransformType.Jvp):
            raise ValueError(
                "inside torch.func.grad, jvp or one of their kin, which qkv.torch does not support: use torch.autograd "
                "(backward, torch.autograd.grad); torch.func.vmap works"
            )


def new_seed(dropout: float) -> torch.Tensor | None:
    """From PyTorch's default generator, so that torch.manual_seed decides; none where nothing is dropped."""
    if not dropout:
        return None
    return torch.randint(0, 2**63 - 1, (), dtype=torch.int64)


def explain(**tensors: Any) -> None:
    """After a failure: raises what is wrong with a tensor, in terms of the caller's arguments."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
        if tensor.is_nested:
            raise ValueError(
                f"{name}: a nested tensor; qkv.torch.attention_varlen takes sequences of unequal length: its values() "
                "and offsets()"
            )
        if tensor.device.type not in ("cpu", "meta"):
            raise ValueError(f"{name}: on device {tensor.device}, and qkv runs on the CPU; move it with .cpu()")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name}: a tensor of layout {tensor.layout}, expected a dense one; use {name}.to_dense()")
        if tensor.is_complex():
            raise TypeError(f"{name}: {tensor.dtype}, expected a real floating-point dtype")
