"""What was measured, as it lies in a JSON file, and the figures that follow from it."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qkv_bench.clock import Samples, median_of_ratios


@dataclass
class Run:
    """One case with one number of threads on one target: the samples of every runner, round by round.

    Of decoding, operations are bytes, and the peak is one thread's share of what all threads read at the same time; of
    rotations, they are bytes read and written, and the peak is what a plain loop copies.
    """

    case: str
    threads: int
    target: str
    operations: int
    peak: list[float] = field(default_factory=list)
    """Multiplications and additions of float32 a second of one thread."""
    samples: dict[str, Samples] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    dtype: str = "float32"
    dot_peak: list[float] = field(default_factory=list)
    """The peak of dot products of bfloat16; empty for other dtypes and on a CPU without that instruction."""
    suite: str = "attention"

    def seconds(self, runner: str) -> list[float]:
        """Of one call, one entry a round: CPU time for one thread, wall time for more."""
        return self.samples[runner].seconds(self.threads)

    def rate(self, runner: str = "qkv") -> float:
        """Operations a second on visible work."""
        return self.operations / statistics.median(self.seconds(runner))

    def share(self, runner: str = "qkv") -> float:
        """Of the peak of as many threads, as it was in the same rounds."""
        rates = [self.operations / seconds for seconds in self.seconds(runner)]
        return median_of_ratios(rates, (self.threads * peak for peak in self.peak))

    def dot_share(self, runner: str = "qkv") -> float | None:
        """The share of the peak of dot products of bfloat16; None where there is none."""
        if not self.dot_peak:
            return None
        rates = [self.operations / seconds for seconds in self.seconds(runner)]
        return median_of_ratios(rates, (self.threads * peak for peak in self.dot_peak))

    def peers(self) -> list[str]:
        """The libraries beside qkv that were timed."""
        return [name for name in self.samples if not name.startswith("qkv")]

    def ratio(self, peer: str) -> float | None:
        """The peer's time / ours; None where the peer was left out."""
        if peer not in self.samples:
            return None
        return median_of_ratios(self.seconds(peer), self.seconds("qkv"))


@dataclass
class Results:
    """Everything that one `./dev bench` has measured."""

    machine: dict[str, Any] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes beyond inputs and output: {runner: {case: bytes}}."""
    tiny: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of a tiny call: {"c++", "numpy", "torch": one entry a round}."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative Frobenius error: {case: error}."""
    model: list[dict[str, Any]] = field(default_factory=list)
    """Of the model: batch, tokens, and for "qkv" and "sdpa" the CPU seconds of each round."""
    append: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of appending one token to a cache: {"c++", "numpy": one entry a round}."""
    generate: list[dict[str, Any]] = field(default_factory=list)
    """Seconds a generated token: length, and for "cached" and "recomputed" one entry a round."""

    def find(self, case: str, threads: int = 1, target: str | None = None) -> Run | None:
        """The run of a case; on the target that was used of itself if none is named."""
        wanted = target or self.machine.get("target")
        for run in self.runs:
            if (run.case, run.threads, run.target) == (case, threads, wanted):
                return run
        return None

    def runs_of(self, suite: str) -> list[Run]:
        """The runs of "attention", "ragged", "decode" or "rope"."""
        return [run for run in self.runs if run.suite == suite]

    def speedup(self, case: str, threads: int) -> float | None:
        """Wall time with one thread / with that many."""
        one, more = self.find(case, 1), self.find(case, threads)
        if one is None or more is None:
            return None
        return median_of_ratios(one.samples["qkv"].wall, more.samples["qkv"].wall)

    def model_ratio(self, batch: int, tokens: int) -> float | None:
        """The model's time with "sdpa" / with "qkv"."""
        for entry in self.model:
            if (entry["batch"], entry["tokens"]) == (batch, tokens):
                return median_of_ratios(entry["sdpa"], entry["qkv"])
        return None

    def save(self, path: Path) -> None:
        """Writes a JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        """Reads one. Raises OSError or ValueError."""
        try:
            data = json.loads(path.read_text())
            data["runs"] = [_run_from(entry) for entry in data["runs"]]
            return cls(**data)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is no result of ./dev bench: {error}") from error

    @classmethod
    def merged(cls, parts: list[Results]) -> Results:
        """What several files hold together; of a case that stands in more than one, the last. Raises ValueError."""
        whole = cls(dict(parts[0].machine))
        runs: dict[tuple[str, int, str], Run] = {}
        for part in parts:
            if part.machine["cpu"] != whole.machine["cpu"]:
                raise ValueError(f"results of two machines: {whole.machine['cpu']}, {part.machine['cpu']}")
            runs.update({(run.case, run.threads, run.target): run for run in part.runs})
            for name in ("memory", "tiny", "errors", "model", "append", "generate"):
                if getattr(part, name):
                    setattr(whole, name, getattr(part, name))
            whole.machine["busy_cpus"] = max(whole.machine["busy_cpus"], part.machine["busy_cpus"])
            whole.machine["versions"] = {**part.machine["versions"], **whole.machine["versions"]}
        whole.runs = list(runs.values())
        return whole


def _run_from(entry: dict[str, Any]) -> Run:
    samples = {name: Samples(**times) for name, times in entry.pop("samples").items()}
    return Run(samples=samples, **entry)


def geometric_mean(values: list[float]) -> float:
    """Of numbers above 0."""
    return math.exp(statistics.fmean(math.log(value) for value in values))
