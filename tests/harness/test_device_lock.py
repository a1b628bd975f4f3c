"""Two harnesses never measure on one device at once, and a dead one keeps nobody waiting."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ResultsError
from harness.run import device_lock
from harness.run.device_lock import lock_path, measuring_alone

CHECKOUT = Path(__file__).parents[2]

HOLDER = """
import asyncio, sys
from harness.run.device_lock import measuring_alone
async def main():
    async with measuring_alone("device", "other-run", print):
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device_lock.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(device_lock, "LOOK_AGAIN_S", 0.01)


async def test_the_second_waits_until_the_first_is_done_and_says_for_whom() -> None:
    order: list[str] = []
    told: list[str] = []

    async def measure(name: str) -> None:
        async with measuring_alone("device", name, told.append):
            order.append(f"{name} begins")
            await asyncio.sleep(0.05)
            order.append(f"{name} ends")

    await asyncio.gather(measure("one"), measure("two"))

    assert order == ["one begins", "one ends", "two begins", "two ends"]
    (waiting,) = told
    assert re.match(r"waiting: process \d+, run one measures on this device \(", waiting)


async def test_two_devices_do_not_wait_for_each_other() -> None:
    async with measuring_alone("one", "a", pytest.fail), measuring_alone("two", "b", pytest.fail):
        assert lock_path("one") != lock_path("two")


async def test_whoever_stops_waiting_takes_nothing() -> None:
    async def wait() -> None:
        async with measuring_alone("device", "second", lambda _: None):
            pytest.fail("the device was held")

    async with measuring_alone("device", "first", pytest.fail):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with measuring_alone("device", "third", pytest.fail):
        pass


async def test_a_harness_that_was_killed_holds_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )
    told: list[str] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), measuring_alone("device", "mine", told.append):
                pytest.fail("another process holds the device")
        assert f"process {process.pid}, run other-run" in told[0]
    finally:
        process.kill()
        process.communicate()
    async with measuring_alone("device", "mine", pytest.fail):
        pass


async def test_a_folder_that_cannot_hold_a_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(device_lock.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ResultsError, match=r"nowhere/dflashbench-device\.lock.*another folder"):
        async with measuring_alone("device", "mine", pytest.fail):
            pass
