"""A project of its own in a temporary folder: two variants on the scripted engine, two prompts."""

import json
from pathlib import Path

import pytest

from harness.records import Calibration, Lateness
from harness.run import commands
from harness.run.progress import PlainLines
from harness.store import RunFolder
from tests.harness import model_files

PROMPTS = {
    "two": [("p1", "prose", "Tell me of the sea."), ("p2", "code", "Write a loop in C, please.")],
    "two_warmup": [("w1", "prose", "Say something else.")],
}

MATRIX = """
name: tiny
engines:
  scripted:
    adapter: dflash2
    command: ["{{python}}", "-m", "harness.scripted_server"{arguments}]
    ready_timeout_s: 60
  broken:
    adapter: dflash2
    command: ["{{python}}", "-m", "harness.scripted_server", "--refuse-to-boot"]
variants:
  - {{name: plain, engine: {plain_engine}, target: model}}
  - name: DFlash2
    engine: scripted
    target: model
    drafter: {{method: dflash2, model: drafter, k: 7}}
held_constant: {{kv_len: 2048}}
workloads:
  - kind: generate
    prompts: two
    warmup: two_warmup
    warmup_passes: 1
    repetitions: 2
    max_tokens: 32
  - {{kind: concurrency, load: wave, prompts: two, levels: [1, 2], repetitions: 2, max_tokens: 16}}
  - kind: concurrency
    load: closed
    prompts: two
    levels: [2]
    repetitions: 1
    num_requests: 4
    max_tokens: 16
schedule: {{order: {order}, boots: {boots}}}
"""


class Project:
    """Writes matrices that the harness can run in seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"
        (path / "pyproject.toml").write_text("")
        for name in ("model", "drafter"):
            model_files.nothing(path / name)
        (path / "prompts").mkdir()
        for name, rows in PROMPTS.items():
            lines = [
                json.dumps(
                    {
                        "id": prompt_id,
                        "kind": kind,
                        "messages": [{"role": "user", "content": text}],
                        "source": "made for this test",
                        "licence": "CC0-1.0",
                    }
                )
                for prompt_id, kind, text in rows
            ]
            (path / "prompts" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def matrix(
        self,
        *,
        plain_engine: str = "scripted",
        arguments: tuple[str, ...] = (),
        boots: int = 1,
    ) -> Path:
        """plain_engine: `broken` for one that refuses to boot; arguments: for the other."""
        extra = "".join(f', "{argument}"' for argument in arguments)
        path = self.path / "tiny.yaml"
        order = "listed" if boots == 1 else "abba"
        path.write_text(
            MATRIX.format(arguments=extra, plain_engine=plain_engine, order=order, boots=boots)
        )
        return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


async def known_calibration(*_: object, **__: object) -> Calibration:
    """Calibration has a test of its own; here it would only cost seconds."""
    level = Lateness(
        concurrency=1024, num_requests=9, added_ttft_p50_s=0.0005, added_ttft_p99_s=0.001
    )
    return Calibration(lateness=(level,), clean_events_per_s=None)


@pytest.fixture(autouse=True)
def _no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "calibrate", known_calibration)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The whole matrix, measured once for all tests that only read."""
    project = Project(tmp_path_factory.mktemp("project"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "calibrate", known_calibration)
        return commands.run_matrix(
            project.matrix(boots=2), results_dir=project.results, progress=PlainLines()
        )
