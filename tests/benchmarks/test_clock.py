"""The clock: who runs when, how often, and what is made of the times."""

from __future__ import annotations

import pytest

from qkv_bench.clock import Samples, Task, median_of_ratios, take_turns


class FakeTime:
    """A clock that calls move on: 2 ms on the wall, 1 ms of CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        monkeypatch.setattr("time.perf_counter", lambda: 0.002 * self.calls)
        monkeypatch.setattr("time.process_time", lambda: 0.001 * self.calls)

    def call(self) -> None:
        self.calls += 1


def test_a_sample_is_long_enough_and_begins_with_a_call_that_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch)
    prepared = []
    task = Task(fake.call, lambda: prepared.append(fake.calls))
    task.calibrate(0.03)
    assert task.calls >= 15
    assert task.calls * 0.002 >= 0.03
    before = fake.calls
    task.sample()
    assert fake.calls - before == task.calls + 1
    assert prepared[-1] == before
    assert task.samples.cpu == [pytest.approx(0.001)]
    assert task.samples.wall == [pytest.approx(0.002)]


def test_a_long_call_is_its_own_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime(monkeypatch)

    def call() -> None:
        fake.calls += 1000

    task = Task(call)
    task.calibrate(0.03)
    assert task.calls == 1
    before = fake.calls
    task.sample()
    assert fake.calls - before == 1000


def test_runners_take_turns() -> None:
    order: list[str] = []
    take_turns([lambda: order.append("peak"), lambda: order.append("qkv")], 3)
    assert order == ["peak", "qkv"] * 3


def test_a_round_that_was_disturbed_disturbs_no_ratio() -> None:
    # In the second round everything took four times as long.
    assert median_of_ratios([2.0, 8.0, 2.2], [1.0, 4.0, 1.0]) == 2.0
    with pytest.raises(ValueError, match="argument 2 is longer"):
        median_of_ratios([1.0], [1.0, 2.0])


def test_more_threads_are_timed_on_the_wall() -> None:
    samples = Samples(cpu=[2.0], wall=[1.0])
    assert samples.seconds(1) == [2.0]
    assert samples.seconds(2) == [1.0]
