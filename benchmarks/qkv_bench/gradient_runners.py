"""Who computes the gradients of a case: qkv and PyTorch, which alone has them on a CPU.

A result is grad_q, grad_k and grad_v (and that of the bias) one after the other, in one row of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

import qkv
from qkv_bench.cases import Array, Case, Inputs
from qkv_bench.dtypes import FLOAT32
from qkv_bench.runners import Prepared, QkvFloat32Runner, Runner, TorchRunner, UnableError, options_of
from qkv_bench.storage import torch_tensor


def joined(gradients: Sequence[Array]) -> Array:
    """All numbers, relative to the largest of their array: what is compared is far from 1 in long sequences."""
    return np.concatenate(
        [each.astype(np.float32).ravel() / np.abs(each.astype(np.float32)).max() for each in gradients]
    )


class QkvGradients:
    """qkv on NumPy arrays; gradients are new arrays in every call."""

    name = "qkv"
    version = qkv.__version__

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Every case can be done."""
        q, k, v, grad = inputs.q, inputs.k, inputs.v, inputs.grad
        options = options_of(case, inputs)
        if case.dropout:
            options |= {"dropout": case.dropout, "seed": 1}
        need: list[Literal["q", "k", "v", "bias", "sinks"]] = ["q", "k", "v"]
        if case.head_bias:
            need.append("bias")

        def forward() -> Any:
            return qkv.attention(q, k, v, return_lse=True, **options)

        saved = forward()

        def call() -> Any:
            out, lse = forward() if case.direction == "both" else saved
            return qkv.attention_backward(grad, q, k, v, out, lse, need=need, **options)

        def result() -> Array:
            return joined([each for each in call() if each is not None])

        return Prepared(call, result, before_sample=lambda: qkv.set_num_threads(threads))


class TorchGradients(TorchRunner):
    """PyTorch: the backward operator of its fused kernel; with the forward pass, autograd as in training."""

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """The fused kernel where it can, which a bias that wants a gradient or dropout rules out."""
        torch = self._torch
        q, k, v, grad = (torch_tensor(torch, each) for each in (inputs.q, inputs.k, inputs.v, inputs.grad))
        wanted = [each.requires_grad_() for each in (q, k, v)]
        options: dict[str, Any] = {"is_causal": case.causal, "dropout_p": case.dropout}
        if inputs.bias is not None:
            options["attn_mask"] = torch.from_numpy(inputs.bias).requires_grad_()
            wanted.append(options["attn_mask"])

        def both() -> Any:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
            return torch.autograd.grad(out, wanted, grad)

        call = both if case.direction == "both" else self._backward_alone(case, (q, k, v), grad)

        def result() -> Array:
            if case.dropout:
                raise UnableError("draws another dropout")
            return joined([each.float().numpy() for each in call()])

        return Prepared(call, result, before_sample=lambda: torch.set_num_threads(threads))

    def _backward_alone(self, case: Case, operands: tuple[Any, ...], grad: Any) -> Callable[[], Any]:
        if case.dropout or case.head_bias:
            raise UnableError("its fused kernel has none")
        aten = self._torch.ops.aten
        operands = tuple(each.detach() for each in operands)
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*operands, 0.0, case.causal)
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward

        def call() -> Any:
            return backward(grad, *operands, out, lse, 0.0, case.causal)

        return call


def find_gradient_runners(peers: bool = True, dtype: str = FLOAT32) -> tuple[list[Runner], dict[str, str]]:
    """As runners.find_runners, of those that have gradients."""
    found: list[Runner] = [QkvGradients()]
    if dtype != FLOAT32:
        found.append(QkvFloat32Runner(found[0]))
    if not peers:
        return found, {}
    try:
        return [*found, TorchGradients()], {}
    except UnableError as error:
        return found, {TorchRunner.name: str(error)}
