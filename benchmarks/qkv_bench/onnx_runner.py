"""ONNX Runtime: of its operators for attention that can do a case, the one that is fastest at it here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkv_bench.cases import Array, Case, Inputs, dense_mask
from qkv_bench.dtypes import BFLOAT16
from qkv_bench.runners import Prepared, UnableError, import_peer, refuse_stats

#: Operators that hold all logits at once are not tried beyond this.
MOST_LOGITS_BYTES = 1 << 30
CONTRIB = "com.microsoft"


@dataclass
class Candidate:
    """One operator with the arrays that it takes, in its own layout."""

    operator: str
    feeds: dict[str, Array]
    out_shape: tuple[int, ...]
    domain: str = ""
    inputs: list[str] = field(default_factory=list)
    attributes: dict[str, int] = field(default_factory=dict)
    more_outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    holds_logits: bool = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the output, as of q."""
        return self.feeds["q"].dtype


class OnnxRunner:
    """Sessions whose inputs and outputs are bound, so that a run copies nothing; idle threads sleep."""

    name = "onnxruntime"

    def __init__(self) -> None:
        """Raises UnableError without onnxruntime or onnx."""
        self._ort = import_peer("onnxruntime")
        self._onnx = import_peer("onnx")
        import_peer("onnx.helper")
        self._ort.set_default_logger_severity(4)
        self.version = str(self._ort.__version__)

    def make(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        """Builds every candidate, keeps the fastest."""
        refuse_stats(case)
        if case.dtype == BFLOAT16:
            raise UnableError("has no bfloat16 on CPUs")
        best: tuple[float, Prepared] | None = None
        problems = []
        for candidate in candidates(case, inputs):
            if candidate.holds_logits and logits_bytes(case) > MOST_LOGITS_BYTES:
                problems.append(f"{candidate.operator} would hold all logits")
                continue
            try:
                prepared = self._prepare(candidate, case, threads)
                seconds = _seconds(prepared.call)
            except Exception as error:  # onnxruntime's own have no base but this
                problems.append(f"{candidate.operator}: {str(error).strip().splitlines()[0][:80]}")
                continue
            if best is None or seconds < best[0]:
                best = (seconds, prepared)
        if best is None:
            raise UnableError("; ".join(problems) or "has no operator for it")
        return best[1]

    def _prepare(self, candidate: Candidate, case: Case, threads: int) -> Prepared:
        ort = self._ort
        session = self._session(candidate, threads)
        binding = session.io_binding()
        for name, array in candidate.feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        outs = {}
        for name, shape in {"out": candidate.out_shape, **candidate.more_outputs}.items():
            outs[name] = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, candidate.dtype))
            binding.bind_ortvalue_output(name, outs[name])

        def call() -> None:
            session.run_with_iobinding(binding)

        def result() -> Array:
            call()
            out: Array = outs["out"].numpy()
            if out.ndim == 4:
                return out
            batch, heads, n, dim = case.shape
            return out.reshape(batch, n, heads, dim).transpose(0, 2, 1, 3)

        return Prepared(call, result, variant=candidate.operator, keep=(candidate, outs))

    def _session(self, candidate: Candidate, threads: int) -> Any:
        helper, ort = self._onnx.helper, self._ort
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in candidate.feeds.items()
        ]
        shapes = {"out": candidate.out_shape, **candidate.more_outputs}
        dtype = helper.np_dtype_to_tensor_dtype(candidate.dtype)
        outputs = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items()]
        node = helper.make_node(
            candidate.operator, candidate.inputs, list(shapes), domain=candidate.domain, **candidate.attributes
        )
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(helper.make_graph([node], "attention", inputs, outputs), opset_imports=opsets)
        model.ir_version = 10
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def logits_bytes(case: Case) -> int:
    """Of all logits as float32."""
    batch, heads, n, _ = case.shape
    return 4 * batch * heads * n * n


def candidates(case: Case, inputs: Inputs) -> Iterator[Candidate]:
    """Every operator that can do the case, as it stands in the documentation of each."""
    yield _standard(case, inputs)
    yield _multi_head(case, inputs)
    if case.causal and inputs.mask is None and inputs.bias is None and case.kv_lens is None:
        yield _grouped(case, inputs)


def _standard(case: Case, inputs: Inputs) -> Candidate:
    """ai.onnx Attention: [batch, heads, length, dim]; a mask must have all its rows."""
    feeds = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    names = list(feeds)
    mask = dense_mask(case, inputs)
    if mask is not None and mask.ndim == 4:
        mask = np.ascontiguousarray(np.broadcast_to(mask, (1, 1, case.shape[2], case.shape[2])))
    extra = mask if inputs.bias is None else inputs.bias
    if extra is not None:
        feeds["mask"] = extra
        names.append("mask")
    # A mask of a window is causal already.
    attributes = {"is_causal": int(case.causal and case.window is None)}
    return Candidate("Attention", feeds, case.shape, inputs=names, attributes=attributes)


def _multi_head(case: Case, inputs: Inputs) -> Candidate:
    """MultiHeadAttention: [batch, length, heads * dim]; lengths of keys, or a bias that hides by -inf."""
    feeds = _heads_last(inputs)
    names = list(feeds)
    batch, heads, n, dim = case.shape
    mask = dense_mask(case, inputs)
    if mask is not None and mask.ndim == 4:
        padding = np.broadcast_to(mask.reshape(1, n), (batch, n)).astype(np.int32)
        feeds["padding"] = np.ascontiguousarray(padding)
        names += ["", "padding"]
    elif mask is not None or inputs.bias is not None:
        bias = inputs.bias if mask is None else np.where(mask, np.float32(0), np.float32(-np.inf))
        assert bias is not None
        feeds["bias"] = bias.reshape(1, 1, n, n)
        names += ["", "", "bias"]
    causal = case.causal and case.window is None
    return Candidate(
        "MultiHeadAttention",
        feeds,
        (batch, n, heads * dim),
        domain=CONTRIB,
        inputs=names,
        attributes={"num_heads": heads, "unidirectional": int(causal)},
        holds_logits=causal or len(names) > 3,
    )


def _grouped(case: Case, inputs: Inputs) -> Candidate:
    """GroupQueryAttention: causal always, with a window where one is given; it also fills a cache of keys."""
    batch, heads, n, dim = case.shape
    feeds = _heads_last(inputs)
    feeds["last"] = np.full(batch, n - 1, np.int32)
    feeds["total"] = np.array([n], np.int32)
    attributes = {"num_heads": heads, "kv_num_heads": heads}
    if case.window is not None:
        attributes["local_window_size"] = case.window[0] + 1
    return Candidate(
        "GroupQueryAttention",
        feeds,
        (batch, n, heads * dim),
        domain=CONTRIB,
        inputs=["q", "k", "v", "", "", "last", "total"],
        attributes=attributes,
        more_outputs={"present_k": case.shape, "present_v": case.shape},
        holds_logits=False,
    )


def _heads_last(inputs: Inputs) -> dict[str, Array]:
    arrays = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    batch, heads, n, dim = inputs.q.shape
    return {
        name: np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(batch, n, heads * dim)
        for name, array in arrays.items()
    }


def _seconds(call: Callable[[], object]) -> float:
    """CPU time of the quickest of some calls: after a first one, 2 to 5 in about 50 ms."""
    call()
    times: list[float] = []
    while len(times) < 2 or (len(times) < 5 and sum(times) < 0.05):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)
