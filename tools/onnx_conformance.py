#!/usr/bin/env python3
"""Counts the cases of ONNX's own node tests that qkv.onnx and ONNX Runtime pass, by operator.

    .venv/bin/python tools/onnx_conformance.py            # a table, and what failed

The cases are built in memory by onnx.backend.test and compared by its own runner: shapes and types equal, values within
the tolerances of the case. A case "..._expanded" is another's function body in other operators, and not counted.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

OPERATORS = ("Attention", "RotaryEmbedding", "RMSNormalization", "TensorScatter")

#: Runs a model on arrays in the graph's order.
Run: TypeAlias = Callable[[Any, Sequence[Any]], Sequence[Any]]


def load_cases() -> dict[str, list[Any]]:
    """The cases of each operator, in the suite's order."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[str, list[Any]] = {operator: [] for operator in OPERATORS}
    with warnings.catch_warnings():  # building the cases of other operators overflows here and there
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    for case in cases:
        for operator in {node.op_type for node in case.model.graph.node} & found.keys():
            if not case.name.endswith("_expanded"):
                found[operator].append(case)
    return found


def check_case(case: Any, run: Run) -> None:
    """Raises AssertionError, or whatever the runtime raises, unless a case passes. One without data does not."""
    from onnx import TensorProto, numpy_helper
    from onnx.backend.test.runner import Runner

    def arrays(items: Sequence[Any]) -> list[Any]:
        return [numpy_helper.to_array(item) if isinstance(item, TensorProto) else item for item in items]

    assert case.data_sets, f"{case.name} has no data"
    for inputs, expected in case.data_sets:
        outputs = run(case.model, arrays(inputs))
        Runner.assert_similar_outputs(arrays(expected), outputs, case.rtol, case.atol)


def run_qkv(model: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """By the backend class, as the suite's runner would."""
    results: Sequence[Any] = importlib.import_module("qkv.onnx").Backend.prepare(model, "CPU").run(inputs)
    return results


def run_onnxruntime(model: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    """By its provider for CPUs."""
    runtime = importlib.import_module("onnxruntime")
    runtime.set_default_logger_severity(4)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {info.name: array for info, array in zip(model.graph.input, inputs, strict=True)}
    results: Sequence[Any] = session.run(None, feeds)
    return results


def failures(cases: Sequence[Any], run: Run) -> dict[str, str]:
    """The names of the cases that fail, and the first line of why."""
    failed = {}
    for case in cases:
        try:
            check_case(case, run)
        except Exception as error:
            failed[case.name] = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return failed


def main() -> int:
    """Prints the table; 1 if qkv fails anywhere."""
    cases = load_cases()
    runs = {"qkv": run_qkv}
    if importlib.util.find_spec("onnxruntime"):
        runs["onnxruntime"] = run_onnxruntime
    failed = {name: {operator: failures(cases[operator], run) for operator in OPERATORS} for name, run in runs.items()}
    print(f"{'operator':18}{'cases':>7}" + "".join(f"{name:>13}" for name in runs))
    for operator in OPERATORS:
        total = len(cases[operator])
        passed = "".join(f"{total - len(failed[name][operator]):13}" for name in runs)
        print(f"{operator:18}{total:7}{passed}")
    for name in runs:
        for operator in OPERATORS:
            for case, reason in failed[name][operator].items():
                print(f"{name} fails {case}: {reason}")
    return any(failed["qkv"].values())


if __name__ == "__main__":
    sys.exit(main())
