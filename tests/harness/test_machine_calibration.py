"""Calibration against the scripted server in a process of its own."""

from harness.run.calibrate import calibrate
from harness.run.commands import DoctorReport
from harness.run.machine import machine_facts


async def test_the_client_adds_little_and_says_how_much():
    found = await calibrate(levels=(1, 4), rates=(500,))
    assert [level.concurrency for level in found.lateness] == [1, 4]
    for level in found.lateness:
        assert level.num_requests >= 12
        assert 0 < level.added_ttft_p50_s <= level.added_ttft_p99_s < 0.5
    assert found.worst_s() == max(level.added_ttft_p99_s for level in found.lateness)
    assert found.clean_events_per_s in (None, 500)
    report = DoctorReport(machine=machine_facts(), calibration=found, missing=("gcc: apt",))
    assert any(line.startswith("client at c = 4: adds ") for line in report.lines())
    assert report.lines()[-1] == "missing: gcc: apt"
