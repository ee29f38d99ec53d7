"""Times of calls: process CPU time and wall time, in samples that are long enough and that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

Call = Callable[[], object]

#: A sample lasts at least this long: hundreds of times what reading the clocks costs.
SAMPLE_SECONDS = 0.03
#: Of the peak, which is steady sooner.
PEAK_SECONDS = 0.01
#: Calls that take longer are their own warm-up.
LONG_SECONDS = 0.2


@dataclass
class Samples:
    """Seconds of one call, one entry a round: of CPU time of the process, and on the wall."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def seconds(self, threads: int) -> list[float]:
        """CPU time for one thread, which other programs do not disturb; wall time for more."""
        return self.cpu if threads == 1 else self.wall


@dataclass
class Task:
    """A call to be timed, what is done before each of its samples, and what must live as long as it is called."""

    call: Call
    prepare: Call = lambda: None
    keep: object = None
    calls: int = 0
    seconds: float = 0.0
    samples: Samples = field(default_factory=Samples)

    def calibrate(self, sample_seconds: float = SAMPLE_SECONDS) -> None:
        """Finds how many calls make a sample; doubles them until they last long enough to tell."""
        self.prepare()
        self.calls = 1
        while True:
            elapsed = self._time(self.calls)[1]
            if elapsed >= sample_seconds / 4:
                break
            self.calls *= 2
        self.seconds = elapsed / self.calls
        self.calls = max(1, round(sample_seconds / self.seconds + 0.5))

    def sample(self) -> None:
        """One sample: a call that is not counted, so that caches and threads are this task's, then the timed ones."""
        self.prepare()
        if self.seconds < LONG_SECONDS:
            self.call()
        cpu, wall = self._time(self.calls)
        self.samples.cpu.append(cpu / self.calls)
        self.samples.wall.append(wall / self.calls)

    def _time(self, calls: int) -> tuple[float, float]:
        call = self.call
        wall = time.perf_counter()
        cpu = time.process_time()
        for _ in range(calls):
            call()
        return time.process_time() - cpu, time.perf_counter() - wall


def take_turns(steps: Sequence[Call], rounds: int) -> None:
    """Runs all steps once a round: what disturbs the machine for a while disturbs every one of them."""
    for _ in range(rounds):
        for step in steps:
            step()


def median_of_ratios(above: Iterable[float], below: Iterable[float]) -> float:
    """The median over the rounds of above / below, each taken within one round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))
