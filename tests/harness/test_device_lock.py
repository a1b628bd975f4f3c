"""Two harnesses never measure on one device at once, and a dead one keeps nobody waiting."""

import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ResultsError
from harness.records import Engine
from harness.run import device_lock
from harness.run.device_lock import devices_of, lock_path, measuring_alone

CHECKOUT = Path(__file__).parents[2]

HOLDER = """
import asyncio, sys
from harness.run.device_lock import measuring_alone
async def main():
    async with measuring_alone(["device"], "other-run", print):
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
        async with measuring_alone(["device"], name, told.append):
            order.append(f"{name} begins")
            await asyncio.sleep(0.05)
            order.append(f"{name} ends")

    await asyncio.gather(measure("one"), measure("two"))

    assert order == ["one begins", "one ends", "two begins", "two ends"]
    (waiting,) = told
    assert re.match(r"waiting: process \d+, run one measures on device \(", waiting)


async def test_two_devices_do_not_wait_for_each_other() -> None:
    both = ["one", "three"]
    async with measuring_alone(both, "a", pytest.fail), measuring_alone(["two"], "b", pytest.fail):
        assert lock_path("one") != lock_path("two")


async def test_a_run_on_two_devices_waits_for_either_and_no_two_for_each_other() -> None:
    order: list[str] = []

    async def measure(name: str, *devices: str) -> None:
        async with measuring_alone(devices, name, lambda _: None):
            order.append(name)
            await asyncio.sleep(0.05)

    async with asyncio.timeout(30):
        async with measuring_alone(["two"], "holder", pytest.fail):
            waiting = [
                asyncio.create_task(measure("first", "one", "two")),
                asyncio.create_task(measure("second", "two", "one")),
            ]
            await asyncio.sleep(0.1)
            assert order == []
        await asyncio.gather(*waiting)
    assert sorted(order) == ["first", "second"]


ENGINE = Engine(name="e", adapter="vllm", kind="process", command=("serve",))


@pytest.mark.parametrize(
    ("changes", "environment", "num_accelerators", "devices"),
    [
        ({}, {}, 0, ("cpu",)),
        ({}, {}, 2, ("accelerator-0", "accelerator-1")),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, {}, 2, ("accelerator-1",)),
        ({}, {"CUDA_VISIBLE_DEVICES": "0"}, 2, ("accelerator-0",)),
        ({}, {"HIP_VISIBLE_DEVICES": "1"}, 2, ("accelerator-1",)),
        (
            {"environment": {"CUDA_VISIBLE_DEVICES": "1"}},
            {"CUDA_VISIBLE_DEVICES": "0"},
            2,
            ("accelerator-1",),
        ),
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, {}, 2, ("cpu",)),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "GPU-6c1F"}}, {}, 2, ("accelerator-gpu-6c1f",)),
        (
            {"kind": "container", "container_options": ("--gpus", '"device=0,1"')},
            {},
            4,
            ("accelerator-0", "accelerator-1"),
        ),
        ({"kind": "attach", "url": "http://box:8000/v1"}, {}, 2, ("at-box-8000",)),
    ],
)
def test_a_device_is_what_an_engine_may_see(
    changes: dict[str, Any],
    environment: dict[str, str],
    num_accelerators: int,
    devices: tuple[str, ...],
) -> None:
    assert devices_of([replace(ENGINE, **changes)], num_accelerators, environment) == devices


def test_the_devices_of_a_run_are_those_of_all_its_engines() -> None:
    one = replace(ENGINE, environment={"CUDA_VISIBLE_DEVICES": "1"})
    two = replace(ENGINE, kind="attach", url="http://localhost:8000")
    assert devices_of([two, one, one], 2, {}) == ("accelerator-1", "at-localhost-8000")


async def test_whoever_stops_waiting_takes_nothing() -> None:
    async def wait() -> None:
        async with measuring_alone(["device"], "second", lambda _: None):
            pytest.fail("the device was held")

    async with measuring_alone(["device"], "first", pytest.fail):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with measuring_alone(["device"], "third", pytest.fail):
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
            async with asyncio.timeout(0.1), measuring_alone(["device"], "mine", told.append):
                pytest.fail("another process holds the device")
        assert f"process {process.pid}, run other-run" in told[0]
    finally:
        process.kill()
        process.communicate()
    async with measuring_alone(["device"], "mine", pytest.fail):
        pass


async def test_a_folder_that_cannot_hold_a_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(device_lock.FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ResultsError, match=r"nowhere/dflashbench-device\.lock.*another folder"):
        async with measuring_alone(["device"], "mine", pytest.fail):
            pass
