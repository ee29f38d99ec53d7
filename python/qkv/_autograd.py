"""Which calls of `qkv.attention` are PyTorch's to record, and what they become then."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

from qkv import _errors

__all__ = ["computed_by"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: What has a gradient, beside q, k and v.
_LEARNED = ("bias", "sinks")


def computed_by(run: Callable[..., Any]) -> Callable[[_F], _F]:
    """Gives a signature and its documentation a body. Python takes longer over 18 defaults than ``run`` over a dict.

    ``run`` refuses a tensor whose gradient it would lose. Such a call goes to the function of the same name in
    `qkv.torch`; all others pay nothing for the question.
    """

    def decorate(model: _F) -> _F:
        name = model.__name__

        if name == "attention":

            @functools.wraps(model)
            def attend(q: Any, k: Any, v: Any = None, **options: Any) -> Any:
                try:
                    return run(q, k, v, options)
                except ValueError:
                    if not _is_recorded((q, k, v), options):
                        raise
                return _recorded(name, (q, k, v), options)

            return cast("_F", attend)

        @functools.wraps(model)
        def attend_ragged(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any) -> Any:
            try:
                return run(q, k, v, cu_seqlens_q, cu_seqlens_k, options)
            except ValueError:
                if not _is_recorded((q, k, v), options):
                    raise
            return _recorded(name, (q, k, v, cu_seqlens_q, cu_seqlens_k), options)

        return cast("_F", attend_ragged)

    return decorate


def _is_recorded(operands: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether autograd would record this call: of tensors, not into a cache, and not inside a torch.func transform."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not all(isinstance(operand, torch.Tensor) for operand in operands):
        return False
    if not torch.is_grad_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    learned = [*operands, *(options[name] for name in _LEARNED if name in options)]
    return any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in learned)


def _recorded(name: str, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if options.pop("out", None) is not None:
        raise _errors.ValueError(
            "out: given while gradients are recorded, and autograd does not follow what is written there"
        )
    return getattr(importlib.import_module("qkv.torch"), name)(*operands, **options)
