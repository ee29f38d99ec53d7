"""Peak memory of a call beyond its inputs and output, measured in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from qkv_bench.cases import find_case, make_inputs

#: Where n x n logits would be 4 GiB.
LONG = "1x4x16384x64-full"
CASES = (LONG, "1x8x2048x64-full", "1x8x2048x64-causal")


def measure(runners: list[str], cases: tuple[str, ...] = CASES) -> dict[str, dict[str, int]]:
    """{runner: {case: bytes}} with one thread, of "qkv" and "torch", which compute into memory that we can see."""
    return {
        runner: {case: _in_child(runner, case) for case in cases} for runner in ("qkv", "torch") if runner in runners
    }


def _in_child(runner: str, case: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "qkv_bench.memory", runner, case], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise OSError(f"measuring the memory of {runner} failed:\n{done.stderr[-1000:]}")
    return int(done.stdout)


def bytes_beyond(call: Callable[[], int]) -> int:
    """How much the resident memory of this process rises above where it was, less the bytes that the call returns.

    The call says what its result needs, which is new memory. Linux alone can tell.
    """
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = _status("VmRSS")
    result = call()
    return max(0, _status("VmHWM") - before - result)


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        match = re.search(rf"^{name}:\s+(\d+) kB$", file.read(), re.MULTILINE)
    if match is None:
        raise OSError(f"/proc/self/status has no {name}")
    return 1024 * int(match[1])


def _measure_here(runner: str, name: str) -> int:
    case = find_case(name)
    inputs = make_inputs(case)
    q, k, v = inputs.q, inputs.k, inputs.v
    small = np.ones((1, 1, 1, 8), np.float32)
    if runner == "torch":
        import torch

        torch.set_num_threads(1)

        def run_torch(*arrays: object) -> int:
            tensors = map(torch.from_numpy, arrays)
            with torch.no_grad():
                out = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=case.causal)
            return int(out.numel()) * 4

        run_torch(small, small, small)  # what the library keeps for ever is not of the call
        return bytes_beyond(lambda: run_torch(q, k, v))

    import qkv

    qkv.set_num_threads(1)
    qkv.attention(small, small, small)
    return bytes_beyond(lambda: int(qkv.attention(q, k, v, causal=case.causal).nbytes))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print(_measure_here(sys.argv[1], sys.argv[2]))
