"""Checks of how fast the machine ran, and of the seconds that they are made from."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import checks
from harness.analysis import dataset
from harness.analysis.metrics import METRICS
from harness.cell_view import CellView
from harness.records import AcceleratorSample, Level, MachineSample, Where
from harness.run import accelerators, machine

from . import synthetic


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CellView]:
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("results"), synthetic.matrix(levels=(), boots=2)
    )
    return {view.cell.variant: view for view in dataset.load(folder).views}


@pytest.fixture
def plain(views: dict[str, CellView]) -> CellView:
    return views["plain"]


@pytest.fixture
def drafted(views: dict[str, CellView]) -> CellView:
    return views["DFlash2"]


def level_of(check: str, view: CellView) -> Level:
    return checks.CHECKS[check].judge(view).level


def message_of(check: str, view: CellView) -> str:
    return checks.CHECKS[check].judge(view).message


def second(view: CellView, boot: int = 0, **told: Any) -> MachineSample:
    return MachineSample(
        where=view.boots[boot].where,
        at="2026-11-29T12:00:00.500Z",
        host_cpu_share=0.5,
        memory_available_bytes=None,
        client_rss_bytes=None,
        engine_rss_bytes=None,
        **told,
    )


def accelerator(*slowed_by: str, temperature_c: float | None = 60.0) -> AcceleratorSample:
    return AcceleratorSample(
        clock_mhz=1980.0,
        power_w=600.0,
        temperature_c=temperature_c,
        memory_used_bytes=None,
        slowed_by=slowed_by,
    )


# --- throttled ------------------------------------------------------------------------------------


def test_a_machine_that_tells_nothing_is_not_accused(plain: CellView) -> None:
    assert level_of("throttled", replace(plain, machine=())) == "ok"
    assert level_of("throttled", replace(plain, machine=(second(plain),))) == "ok"
    untold = replace(accelerator(), slowed_by=None)
    unsaid = replace(plain, machine=(second(plain, accelerators=(untold,)),))
    assert level_of("throttled", unsaid) == "ok"


def test_one_second_in_which_heat_slowed_an_accelerator_is_a_warning(plain: CellView) -> None:
    cool = second(plain, accelerators=(accelerator(), accelerator()))
    hot = accelerator("temperature (driver)", temperature_c=88.0)
    view = replace(plain, machine=(cool, second(plain, accelerators=(accelerator(), hot)), cool))

    assert level_of("throttled", replace(plain, machine=(cool, cool))) == "ok"
    assert level_of("throttled", view) == "warning"
    assert "1 of 3 seconds (temperature (driver), at up to 88 degrees" in (
        message_of("throttled", view)
    )


def test_a_cpu_that_slowed_itself_down_within_a_boot_is_a_warning(plain: CellView) -> None:
    def counted(*counts: int, boot: int = 0) -> tuple[MachineSample, ...]:
        return tuple(second(plain, boot, cpu_throttle_count=count) for count in counts)

    between_boots = counted(5, 5) + counted(9, 9, boot=1)
    assert level_of("throttled", replace(plain, machine=between_boots)) == "ok"
    within = replace(plain, machine=counted(5, 7) + counted(9, 10, boot=1))
    assert level_of("throttled", within) == "warning"
    assert "slowed itself down 3 times" in message_of("throttled", within)


@pytest.mark.parametrize(
    ("shares", "level"),
    [((0.05, 0.05, 0.05), "ok"), ((0.0, 0.3, 0.0), "ok"), ((0.0, 0.06, 0.2), "warning")],
)
def test_a_hypervisor_that_takes_time_in_most_seconds_is_a_warning(
    plain: CellView, shares: tuple[float, ...], level: Level
) -> None:
    seconds = tuple(second(plain, cpu_steal_share=share) for share in shares)

    assert level_of("throttled", replace(plain, machine=seconds)) == level


# --- roof -----------------------------------------------------------------------------------------


def at_rate(view: CellView, rate: float, **facts: Any) -> CellView:
    """Every stream: 101 tokens, the first at 0, the last after 100 / rate seconds."""
    requests = tuple(
        replace(item, output_tokens=101, first_tokens=1, ttft_s=0.0, t_last_s=100 / rate)
        for item in view.requests
    )
    weights = {"bytes": {"layers": 9_000, "head": 1_000, "embedding": 7_000}, "head": {}}
    models = {"demo-dense": {"path": "t", "config": None, "weights": weights}}
    return replace(view, requests=requests, models=models, **facts)


@pytest.mark.parametrize(("rate", "level"), [(99.0, "ok"), (101.0, "invalid")])
def test_plain_decoding_faster_than_its_weights_can_be_read_is_invalid(
    plain: CellView, rate: float, level: Level
) -> None:
    """10,000 bytes a step over 1 MB/s: 100 steps a second."""
    view = at_rate(plain, rate, device={"memory_bandwidth_GBps": 0.001})

    assert level_of("roof", view) == level
    assert level_of("roof", replace(view, cell=replace(view.cell, drafter="mtp"))) == "ok"
    assert level_of("roof", replace(view, models={})) == "ok"
    assert level_of("roof", replace(view, device={})) == "ok"


def test_the_share_of_the_roof_counts_a_drafters_steps_and_not_its_tokens(
    plain: CellView, drafted: CellView
) -> None:
    """10,000 bytes a step, 80 tokens a second, 1 MB/s: 0.8 of the roof, or 0.2 where 25 steps bring
    the 100 tokens behind the first.
    """
    device = {"memory_bandwidth_GBps": 0.001}
    roof = METRICS["roof_fraction"].compute
    one = replace(drafted, snapshots=drafted.snapshots[:2], requests=drafted.requests[:1])
    counters = one.snapshots[0].counters
    assert counters is not None
    before = replace(counters, drafts=0, plain_steps=0, generation_tokens=0, requests=0)
    after = replace(before, drafts=20, plain_steps=5, generation_tokens=101, requests=1)
    pair = zip(one.snapshots, (before, after), strict=True)
    one = replace(one, snapshots=tuple(replace(item, counters=found) for item, found in pair))

    assert roof(at_rate(plain, 80.0, device=device)).value == pytest.approx(0.8)
    assert roof(at_rate(one, 80.0, device=device)).value == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("without", "reason"),
    [
        ({"device": {}}, "the matrix gives no `device: {memory_bandwidth_GBps}`"),
        ({"models": {}}, "the target's safetensors files are not on this machine"),
    ],
)
def test_a_roof_that_is_not_known_says_why(
    plain: CellView, without: dict[str, Any], reason: str
) -> None:
    view = at_rate(plain, 80.0, device={"memory_bandwidth_GBps": 0.001})
    measured = METRICS["roof_fraction"].compute(replace(view, **without))

    assert (measured.value, measured.reason) == (None, reason)


def test_a_tied_embedding_is_the_head_and_an_untied_one_is_hardly_read(plain: CellView) -> None:
    def step_bytes(**parts: int) -> int | None:
        models = {"demo-dense": {"weights": {"bytes": parts, "head": {}}}}
        return replace(plain, models=models).step_bytes

    assert step_bytes(layers=9, embedding=7) == 16
    assert step_bytes(layers=9, embedding=7, head=5) == 14
    assert step_bytes(layers=9, head=5, experts=99, vision=99, mtp=99) == 14
    assert replace(plain, models={}).step_bytes is None


# --- the seconds ----------------------------------------------------------------------------------


def test_a_cell_has_the_seconds_of_its_own_repetitions_alone(tmp_path: Path) -> None:
    """Repetitions of synthetic runs all begin at 12:00:00 and last less than 10 s."""
    folder = synthetic.write_run(tmp_path, synthetic.matrix(levels=(), boots=2))
    (before, *_) = dataset.load(folder).views
    boot = before.boots[0].where
    template = second(before)

    def at(moment: str, where: Where = boot) -> MachineSample:
        return replace(template, where=where, at=f"2026-11-29T{moment}Z")

    stranger = replace(boot, boot_id="b9-s1")
    folder.append(at("11:59:59.900"), at("12:00:00.500"), at("12:00:30.000"))
    folder.append(at("12:00:00.500", stranger))
    folder.close()

    (view, *_) = dataset.load(folder).views

    assert {sample.at for sample in view.machine} == {"2026-11-29T12:00:00.500Z"}
    assert {sample.where.boot_id for sample in view.machine} == {boot.boot_id}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "0, 1980, 612.34, 61, 1024, 0x0000000000000000",
            (1980.0, 612.34, 61.0, 2**30, ()),
        ),
        (
            # at its power limit (4), slowed by heat as driver (20) and hardware (40) say
            "0, 1200, [N/A], 88, [N/A], 0x0000000000000064",
            (1200.0, None, 88.0, None, ("temperature (driver)", "temperature (hardware)")),
        ),
        ("0, 1980, 612, 61, 1024, [N/A]", (1980.0, 612.0, 61.0, 2**30, None)),
    ],
)
def test_a_line_of_nvidia_smi(line: str, expected: tuple[Any, ...]) -> None:
    found = accelerators.Accelerators()
    found.take(line)
    (only,) = found.latest

    assert (
        only.clock_mhz,
        only.power_w,
        only.temperature_c,
        only.memory_used_bytes,
        only.slowed_by,
    ) == expected


def test_what_is_no_line_of_figures_is_left_out() -> None:
    found = accelerators.Accelerators()
    for line in ("", "No devices were found", 'Field "clocks_event_reasons" is not valid, , , , ,'):
        found.take(line)

    assert found.latest == ()


async def test_the_last_line_of_every_accelerator_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stub that prints two accelerators twice and then stays, as the real one does."""
    stub = tmp_path / "nvidia-smi"
    lines = ["1, 1000, 1, 1, 1, 0x0", "0, 1000, 1, 1, 1, 0x0", "1, 1500, 1, 1, 1, 0x80"]
    stub.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines) + "exec sleep 60")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    async with accelerators.watched() as seen:
        async with asyncio.timeout(20):
            while [each.clock_mhz for each in seen.latest] != [1000.0, 1500.0]:
                await asyncio.sleep(0.01)

    assert [each.slowed_by for each in seen.latest] == [(), ("power brake",)]


async def test_a_machine_without_the_program_has_no_accelerators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    async with accelerators.watched() as seen:
        assert seen.latest == ()


def test_slow_downs_of_all_cores_and_packages_are_summed(tmp_path: Path) -> None:
    for cpu, name, count in (
        ("cpu0", "core_throttle_count", 3),
        ("cpu1", "core_throttle_count", 4),
        ("cpu1", "package_throttle_count", 5),
    ):
        folder = tmp_path / cpu / "thermal_throttle"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{count}\n")
    (tmp_path / "cpufreq").mkdir()

    assert machine.cpu_throttle_count(tmp_path) == 12
    assert machine.cpu_throttle_count(tmp_path / "cpufreq") is None
