"""Calibration against the scripted server in a process of its own, and what it says of a cell."""

from dataclasses import replace

import pytest

from harness import checks
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.errors import BootError
from harness.records import Calibration, Lateness
from harness.run import boot
from harness.run.boot import RunningEngine
from harness.run.calibrate import calibrate, worst_s
from harness.run.commands import DoctorReport
from harness.run.machine import machine_facts

from . import synthetic


async def test_the_client_adds_little_and_says_how_much():
    found = await calibrate(levels=(1, 4), rates=(500,))
    assert [level.concurrency for level in found.lateness] == [1, 4]
    for level in found.lateness:
        assert level.num_requests >= 12
        assert 0 < level.added_ttft_p50_s <= level.added_ttft_p99_s < 5
    assert worst_s(found) == max(level.added_ttft_p99_s for level in found.lateness)
    if found.unclean_events_per_s is None:
        assert found.clean_events_per_s is not None
        assert found.clean_events_per_s > 0
    else:  # a machine as busy as this says so
        assert (found.clean_events_per_s, found.unclean_events_per_s) == (None, 500)


async def test_an_engine_that_is_killed_meanwhile_ends_it_with_3(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really_ready = boot.wait_ready

    async def ready_and_killed(engine: RunningEngine, model: str) -> None:
        await really_ready(engine, model)
        assert engine.process is not None
        engine.process.kill()
        await engine.process.wait()

    monkeypatch.setattr(boot, "wait_ready", ready_and_killed)
    with pytest.raises(BootError, match="the scripted server did not answer") as caught:
        await calibrate(levels=(1,), rates=(500,))

    assert caught.value.exit_code == 3


def told(found: Calibration) -> tuple[str, ...]:
    return DoctorReport(machine=machine_facts(), calibration=found, missing=("gcc: apt",)).lines()


def at(concurrency: int, p99_ms: float) -> Lateness:
    return Lateness(
        concurrency=concurrency,
        num_requests=100,
        added_ttft_p50_s=0.0004,
        added_ttft_p99_s=p99_ms / 1e3,
    )


KNOWN = Calibration(
    lateness=(at(1, 0.5), at(64, 12.0)), clean_events_per_s=4000, unclean_events_per_s=8000
)


def test_doctor_tells_lateness_by_concurrency_and_the_highest_clean_rate():
    lines = told(KNOWN)
    assert (
        "client at c = 64: adds 0.40 ms to the time to first token (p99 12.00 ms, 100 requests)"
        in lines
    )
    assert (
        "client at 16 streams: decode rates right within 1 % at 4000 events per second, not at 8000"
        in lines
    )
    assert lines[-1] == "missing: gcc: apt"
    never = replace(KNOWN, clean_events_per_s=None, unclean_events_per_s=1000)
    assert any("right within 1 % at none of the rates tried, not at 1000" in s for s in told(never))


# --- what it says of a cell -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> CellView:
    """One of four requests at once."""
    asked = synthetic.matrix(levels=(1, 4))
    folder = synthetic.write_run(tmp_path_factory.mktemp("results"), asked)
    (view,) = [
        view
        for view in dataset.load(folder).views
        if (view.cell.variant, view.cell.load, view.cell.concurrency) == ("DFlash2", "wave", 4)
    ]
    return view


def judged(
    view: CellView, calibration: Calibration, **of_requests: object
) -> checks.finding.Finding:
    return checks.client.client_late(
        replace(
            view,
            sessions=tuple(replace(item, calibration=calibration) for item in view.sessions),
            requests=tuple(replace(item, **of_requests) for item in view.requests),
        )
    )


def test_the_lateness_that_counts_is_that_of_the_cells_own_concurrency(cell):
    slow_answer = {"ttft_s": 1.0, "t_last_s": 2.0, "num_output_events": 20}
    assert judged(cell, KNOWN, **slow_answer).level == "warning"  # 12 ms at 64, the next above 4
    fine = replace(KNOWN, lateness=(at(1, 50.0), at(4, 0.5), at(64, 50.0)))
    assert judged(cell, fine, **slow_answer).level == "ok"


def test_more_at_once_than_was_calibrated_is_a_warning(cell):
    small = replace(KNOWN, lateness=(at(2, 0.0),))
    found = judged(cell, small, ttft_s=1.0)
    assert found.level == "warning"
    assert "calibrated up to 2 requests at once, not for 4" in found.message


@pytest.mark.parametrize(("num_events", "level"), [(999, "ok"), (1001, "warning")])
def test_an_event_rate_above_the_clean_one_is_a_warning(cell, num_events, level):
    # four streams of so many events in one second, where 4000 a second were clean
    exact = replace(KNOWN, lateness=(at(4, 0.0),))
    found = judged(cell, exact, ttft_s=1.0, t_last_s=2.0, num_output_events=num_events)
    assert found.level == level
    if level == "warning":
        assert "About 4004 events a second came in; up to 4000" in found.message


def test_a_client_that_was_clean_at_no_rate_is_late_at_every_rate(cell):
    never = Calibration(lateness=(at(4, 0.0),), clean_events_per_s=None, unclean_events_per_s=1000)
    found = judged(cell, never, ttft_s=1.0, t_last_s=2.0, num_output_events=3)
    assert found.level == "warning"
    assert "up to 0 this client's rates were seen to be right within 1 %, at 1000 not" in (
        found.message
    )


def test_where_no_rate_was_tried_none_is_judged(cell):
    untried = Calibration(lateness=(at(4, 0.0),), clean_events_per_s=None)
    assert judged(cell, untried, ttft_s=1.0, t_last_s=1.001, num_output_events=999).level == "ok"
