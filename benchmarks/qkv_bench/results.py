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
    """One case with one number of threads on one target: the samples of every runner, round by round."""

    case: str
    threads: int
    target: str
    operations: int
    peak: list[float] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

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

    def find(self, case: str, threads: int = 1, target: str | None = None) -> Run | None:
        """The run of a case; on the target that was used of itself if none is named."""
        wanted = target or self.machine.get("target")
        for run in self.runs:
            if (run.case, run.threads, run.target) == (case, threads, wanted):
                return run
        return None

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


def _run_from(entry: dict[str, Any]) -> Run:
    samples = {name: Samples(**times) for name, times in entry.pop("samples").items()}
    return Run(samples=samples, **entry)


def geometric_mean(values: list[float]) -> float:
    """Of numbers above 0."""
    return math.exp(statistics.fmean(math.log(value) for value in values))
