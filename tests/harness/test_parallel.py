"""The same function of many things in several processes."""

import math
import operator
import os

import pytest

from harness import parallel
from harness.parallel import in_order


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(parallel, "FEWEST_THINGS", 2)


def test_results_come_in_the_order_of_the_things() -> None:
    assert list(in_order(math.factorial, range(9))) == [1, 1, 2, 6, 24, 120, 720, 5040, 40320]


def test_two_processes_work_and_none_of_them_is_the_callers() -> None:
    workers = list(in_order(operator.call, [os.getpid] * 6))

    assert len(set(workers)) == 2
    assert os.getpid() not in workers
    assert workers == workers[:2] * 3  # each takes the next thing as it has given its result


def test_a_few_things_are_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "FEWEST_THINGS", 4)

    assert list(in_order(operator.call, [os.getpid] * 3)) == [os.getpid()] * 3


def test_on_a_single_core_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MOST_PROCESSES", 1)

    assert list(in_order(operator.call, [os.getpid] * 3)) == [os.getpid()] * 3


def test_an_error_of_a_process_is_the_callers() -> None:
    results = in_order(math.sqrt, [4.0, -1.0, 9.0])

    assert next(results) == 2
    with pytest.raises(ValueError, match="math domain error"):
        next(results)


def test_a_process_that_dies_is_told_with_its_code() -> None:
    with pytest.raises(RuntimeError, match="ended with code 7 before its result"):
        list(in_order(os._exit, [7, 7]))


def test_what_a_process_prints_is_no_result() -> None:
    assert list(in_order(print, ["a", "b"])) == [None, None]


def test_things_are_taken_only_as_far_as_they_are_worked_on() -> None:
    taken: list[int] = []

    def things():
        for number in range(100):
            taken.append(number)
            yield number

    next(in_order(math.factorial, things()))

    assert len(taken) == 3  # two that are worked on, and the one for which a result was awaited
