"""Servers that were there before: they cannot be booted, so their repetitions take turns."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.analysis.summary import Summary, summarise
from harness.records import Boot, RepetitionEnd, Request
from harness.run import commands
from harness.run.progress import PlainLines
from harness.scripted_server import FakeEngine, Law, Received, Respond, Script, refused, serving
from harness.store import RunFolder

from .conftest import Project

MATRIX = """
name: attached
engines:
  here: {{adapter: dflash2, kind: attach, url: "{here}"}}
  there: {{adapter: dflash2, kind: attach, url: "{there}"}}
variants:
  - {{name: plain, engine: here, target: model}}
  - {{name: DFlash2, engine: there, target: model, drafter: {{method: dflash2}}, reference: plain}}
workloads:
  - kind: generate
    prompts: two
    warmup: two_warmup
    warmup_passes: 1
    repetitions: 2
    max_tokens: 32
schedule: {{boots: 2}}
"""


class Listening:
    """A scripted engine that remembers what it was asked, and can be made to refuse."""

    def __init__(self, law: Law) -> None:
        self.asked: list[str] = []
        self.refuses_from: int | None = None  # the chat request from which on it is out of order
        self._answer: Respond = FakeEngine(law).respond

    def respond(self, request: Received) -> Script:
        if request.path == "/v1/chat/completions":
            self.asked.append(request.json()["messages"][-1]["content"])
            if self.refuses_from is not None and len(self.asked) >= self.refuses_from:
                return refused(503, "out of order")
        return self._answer(request)


@pytest.fixture
def servers(project: Project) -> Iterator[tuple[Listening, Listening, Path]]:
    plain = Listening(Law(served_name="model"))
    drafting = Listening(Law(served_name="model", drafting=True))
    with ExitStack() as stack:
        here, there = (stack.enter_context(serving(s.respond)) for s in (plain, drafting))
        path = project.path / "attached.yaml"
        path.write_text(MATRIX.format(here=here.url, there=there.url))
        yield plain, drafting, path


def run(project: Project, path: Path) -> RunFolder:
    return commands.run_matrix(path, results_dir=project.results, progress=PlainLines())


def repetitions(folder: RunFolder) -> list[tuple[str, int | None]]:
    """Variant and repetition, in the order in which they ran."""
    variants = {cell.cell_id: cell.variant for cell in folder.manifest.plan.cells}
    return [
        (variants[str(end.where.cell_id)], end.where.repetition)
        for end in folder.usable(RepetitionEnd)
    ]


def test_repetitions_take_turns_and_every_server_is_one_boot(
    project: Project, servers: tuple[Listening, Listening, Path]
) -> None:
    plain, drafting, path = servers
    folder = run(project, path)

    assert commands.exit_code(folder) == 0
    assert repetitions(folder) == [
        ("plain", -1),
        ("plain", 0),
        ("DFlash2", -1),
        ("DFlash2", 0),
        ("DFlash2", 1),
        ("plain", 1),
        ("plain", 2),
        ("DFlash2", 2),
        ("DFlash2", 3),
        ("plain", 3),
    ]
    boots = folder.boots()
    assert [(b.where.boot_id, b.attached, b.pid) for b in boots] == [
        ("b1-s1", True, None),
        ("b2-s1", True, None),
    ]
    for server in (plain, drafting):  # ready at each of four turns, one warm-up, 4 x 2 measured
        assert Counter(server.asked) == {
            "Hello": 4,
            "Say something else.": 1,
            "Tell me of the sea.": 4,
            "Write a loop in C, please.": 4,
        }


def test_its_intervals_are_within_one_boot_and_decide_nothing(
    project: Project, servers: tuple[Listening, Listening, Path]
) -> None:
    summary = summarise(run(project, servers[2]))

    assert methods(summary) == {"bootstrap within one boot"}
    said = [v for v in summary.verdicts if v.check == "within_one_boot"]
    assert {verdict.level for verdict in said} == {"warning"}
    assert all("attached" in verdict.message for verdict in said)


def methods(summary: Summary) -> set[str | None]:
    return {
        row.estimate.method
        for row in summary.rows
        if row.metric in ("decode_rate", "speedup") and row.estimate.method is not None
    }


def test_a_server_that_fails_loses_its_turn_and_is_gone_on_with_as_one_boot_more(
    project: Project, servers: tuple[Listening, Listening, Path]
) -> None:
    plain, _, path = servers
    plain.refuses_from = 1 + 1 + 2 + 1  # ready, warm-up, two prompts; not ready at its second turn
    folder = run(project, path)

    assert commands.exit_code(folder) == 3
    assert [end.where.block_id for end in commands.unavailable(folder)] == ["b4", "b5", "b8"]
    assert "503" in str(commands.unavailable(folder)[0].message)

    plain.refuses_from = None
    commands.resume(folder.path, progress=PlainLines())
    assert commands.exit_code(folder) == 0
    measured = [r for r in folder.usable(Request) if (r.where.repetition or 0) >= 0]
    assert len({(r.where.cell_id, r.where.repetition, r.index) for r in measured}) == 16
    assert len(measured) == 16
    assert [b.where.boot_id for b in whole(folder)] == ["b1-s1", "b2-s1", "b4-s2"]
    assert methods(summarise(folder)) == {"bootstrap within one boot"}


def whole(folder: RunFolder) -> list[Boot]:
    """Those that measured something."""
    used = {request.where.boot_id for request in folder.usable(Request)}
    return [boot for boot in folder.boots() if boot.where.boot_id in used]
