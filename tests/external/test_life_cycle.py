"""The real llama-server, started and stopped by the harness: nothing stays, refusals are named."""

import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.config import load_matrix
from harness.errors import BootError
from harness.records import Drafter, Model, Variant, Where
from harness.run import boot

from .conftest import CHECKOUT

pytestmark = pytest.mark.external

WHERE = Where(run_id="r", session_id="s1", block_id="b1", boot_id="b1-s1")
SETTINGS = {"ctx_size": 256, "parallel": 1, "threads": 1}
NUM_CYCLES = 100


@pytest.fixture(scope="module")
def plain() -> Variant:
    if not (CHECKOUT / ".engines/models/demo-dense.f32.gguf").exists():
        pytest.skip(".engines/models/demo-dense.f32.gguf is not there: run tests/external/install")
    matrix = load_matrix(CHECKOUT / "configs" / "matrices" / "three-engines.yaml")
    return next(variant for variant in matrix.variants if variant.name == "llama.cpp")


def llama_servers() -> set[int]:
    return {
        process.pid for process in psutil.process_iter(["name"]) if process.name() == "llama-server"
    }


def is_free(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) != 0


async def test_a_hundred_starts_and_stops_leave_no_process_and_no_port(
    plain: Variant, tmp_path: Path
) -> None:
    before = llama_servers()
    for cycle in range(NUM_CYCLES):
        folder = tmp_path / str(cycle)
        folder.mkdir()
        engine = await boot.launch(plain, SETTINGS, WHERE, folder)
        await boot.wait_ready(engine, plain.target.name)
        stopped = await boot.stop(engine)
        assert stopped.pid is not None
        assert not psutil.pid_exists(stopped.pid)
        assert is_free(stopped.url)
    assert llama_servers() <= before  # others may run here, and end


async def refused(variant: Variant, folder: Path, settings: dict[str, object]) -> str:
    """Why it did not boot."""
    engine = await boot.launch(variant, {**SETTINGS, **settings}, WHERE, folder)
    try:
        with pytest.raises(BootError) as caught:
            await boot.wait_ready(engine, variant.target.name)
    finally:
        await boot.stop(engine)
    print(caught.value)
    return str(caught.value)


async def test_a_missing_model_is_named(plain: Variant, tmp_path: Path) -> None:
    missing = replace(plain, target=Model(name="gone", path="/nowhere/gone.gguf"))
    assert "the model is not there or no GGUF file" in await refused(missing, tmp_path, {})


async def test_memory_that_is_not_there_is_named(plain: Variant, tmp_path: Path) -> None:
    message = await refused(plain, tmp_path, {"ctx_size": 20_000_000})
    assert "memory ran out: a lower `ctx_size`" in message


async def test_an_option_that_does_not_exist_is_named(plain: Variant, tmp_path: Path) -> None:
    message = await refused(plain, tmp_path, {"no_such_thing": 1})
    assert "--no-such-thing': a setting of `flags` or `held_constant` is no option" in message


async def test_a_drafter_that_is_none_is_named(plain: Variant, tmp_path: Path) -> None:
    wrong = replace(plain, drafter=Drafter(method="draft-dflash", model=plain.target, k=7))
    assert "the file given as drafter is none of DFlash" in await refused(wrong, tmp_path, {})


async def test_a_program_that_is_not_there_is_named(plain: Variant, tmp_path: Path) -> None:
    nowhere = replace(plain.engine, command=("/nowhere/llama-server", "{port}"))
    with pytest.raises(BootError, match=r"'/nowhere/llama-server' cannot be started: no such"):
        await boot.launch(replace(plain, engine=nowhere), SETTINGS, WHERE, tmp_path)
