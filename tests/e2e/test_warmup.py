"""A warm-up goes on until two passes took as long, and no longer than it may."""

from collections.abc import Sequence

import pytest

from harness.analysis.summary import summarise
from harness.records import Request
from harness.run import commands
from harness.run.progress import PlainLines
from harness.scripted_server import FakeEngine, Law, Received, Script, serving
from harness.store import RunFolder

from .conftest import PROMPTS, Project

MATRIX = """
name: warming
engines:
  here: {{adapter: dflash2, kind: attach, url: "{url}"}}
variants:
  - {{name: plain, engine: here, target: model}}
workloads:
  - kind: generate
    prompts: two
    warmup: two_warmup
    warmup_passes: {passes}
    repetitions: 1
    max_tokens: 8
schedule: {{boots: 2}}
"""

((_, _, WARMUP_PROMPT),) = PROMPTS["two_warmup"]


class Warming:
    """Takes its time for the first answers to the warm-up's prompt: milliseconds of each."""

    def __init__(self, prefill_ms: Sequence[float]) -> None:
        laws = [Law(served_name="model", prefill_ms=each) for each in prefill_ms]
        self._cold = iter(FakeEngine(law) for law in laws)
        self._warm = FakeEngine(Law(served_name="model"))

    def respond(self, request: Received) -> Script:
        if request.path != "/v1/chat/completions":
            return self._warm.respond(request)
        warms_up = request.json()["messages"][-1]["content"] == WARMUP_PROMPT
        return next(self._cold if warms_up else iter([self._warm])).respond(request)


@pytest.mark.parametrize(
    ("prefill_ms", "most", "passes", "level"),
    [
        ((800, 400, 400, 400), 4, [-1, -2, -3], "ok"),
        ((400, 400), 4, [-1, -2], "ok"),
        ((400, 800, 400), 3, [-1, -2, -3], "warning"),
        ((400,), 1, [-1], "ok"),
    ],
)
def test_passes_end_when_two_in_a_row_took_as_long(
    project: Project, prefill_ms: Sequence[float], most: int, passes: list[int], level: str
) -> None:
    path = project.path / "warming.yaml"
    with serving(Warming(prefill_ms).respond) as server:
        path.write_text(MATRIX.format(url=server.url, passes=most))
        folder = commands.run_matrix(path, results_dir=project.results, progress=PlainLines())

    assert [r.where.repetition for r in sent(folder) if is_warmup(r)] == passes
    assert [r.prompt_id for r in sent(folder) if not is_warmup(r)] == ["p1", "p2"] * 2
    (said,) = [v for v in summarise(folder).verdicts if v.check == "warmed_up"]
    assert said.level == level


def sent(folder: RunFolder) -> list[Request]:
    return folder.usable(Request)


def is_warmup(request: Request) -> bool:
    return (request.where.repetition or 0) < 0
