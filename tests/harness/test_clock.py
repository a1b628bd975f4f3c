"""The clock that goes on while the machine sleeps, against the one that does not."""

import sys
import time

import pytest

from harness.run.clock import slept_s, slept_since


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has both clocks")
def test_the_difference_of_the_clocks_is_the_time_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 4000.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    before_s = slept_s()
    assert before_s == 1000.0
    clocks[time.CLOCK_MONOTONIC] += (
        2.0  # a repetition of two seconds, and a lid closed for a minute
    )
    clocks[time.CLOCK_BOOTTIME] += 62.0
    assert slept_since(before_s) == 60.0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has both clocks")
def test_readings_a_little_apart_are_no_sleep_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 4000.002}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    assert slept_since(1000.0) == 0.0


def test_a_system_that_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    assert slept_s() is None
    assert slept_since(None) is None
