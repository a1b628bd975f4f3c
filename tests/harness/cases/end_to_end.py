"""A whole `dflashbench run` against a scripted server: matrix in, report and exit code out.

One run holds any number of cases: each is a prompt with an answer of its own and a kind of its own,
so that it has its own row in every table. Nothing here knows what a case is about.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from harness import cli
from harness.records import Request, Timeouts
from harness.run import commands
from harness.scripted_server import DONE, Received, Respond, Script, chunk, page, serving, usage
from harness.store import RunFolder
from tests.e2e.conftest import known_calibration
from tests.harness import model_files

Sends: TypeAlias = Sequence[tuple[float, bytes]]
Answer: TypeAlias = Script | Sends | Callable[[int], Script | Sends]
"""What a prompt gets: always the same, or a function of how often it was asked before."""

ONE_OF_EACH = "{kind: generate, prompts: cases, repetitions: 1, max_tokens: 4096}"

MATRIX = """
name: {name}
engines:
  scripted: {{adapter: {adapter}, kind: attach, url: "{url}"{timeouts}}}
variants:
{variants}
workloads:
{workloads}
schedule: {{order: listed, boots: {boots}}}
{more}
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run left: its folder, its report, and what it said on the way."""

    exit_code: int
    folder: RunFolder
    report: Path  # the folder of RESULTS.md
    page: str  # RESULTS.md
    summary: Mapping[str, Any]  # summary.json
    received: Sequence[Received]  # the chat requests, readiness left out
    stdout: str
    stderr: str

    @property
    def requests(self) -> list[Request]:
        """The measured ones, in order."""
        return [r for r in self.folder.usable(Request) if (r.where.repetition or 0) >= 0]

    def request(self, prompt_id: str) -> Request:
        """The last of this prompt."""
        return [request for request in self.requests if request.prompt_id == prompt_id][-1]

    def text(self, prompt_id: str) -> str | None:
        """What the events of that request hold, joined."""
        where = self.request(prompt_id).where
        assert where.cell_id is not None
        assert where.boot_id is not None
        assert where.repetition is not None
        rows = self.folder.read_events(where.cell_id, where.boot_id, where.repetition)
        return next(row.text for row in rows if row.request_id == where.request_id)

    def row(self, metric: str, **which: Any) -> Mapping[str, Any]:
        """The one line of summary.json with this metric; `kind` is "all" unless told."""
        wanted = {"kind": "all", **which, "metric": metric}
        (found,) = [
            row
            for row in self.summary["rows"]
            if all(row[key] == value for key, value in wanted.items())
        ]
        return found

    def verdicts(self, check: str, **which: Any) -> list[Mapping[str, Any]]:
        """What a check said of the cells; `which` may name a level."""
        return [
            verdict
            for verdict in self.summary["verdicts"]
            if verdict["check"] == check
            and all(verdict[key] == value for key, value in which.items())
        ]

    def csv(self, name: str) -> str:
        return (self.report / "tables" / f"{name}.csv").read_text(encoding="utf-8")

    def tables(self) -> list[list[str]]:
        """Each Markdown table of RESULTS.md as its lines."""
        blocks = re.split(r"\n(?!\|)", self.page)
        rows = [[line for line in block.splitlines() if line.startswith("|")] for block in blocks]
        return [lines for lines in rows if lines]


def measure(
    path: Path,
    answers: Mapping[str, Answer],
    *,
    variants: Iterable[str] = ("{name: plain, engine: scripted, target: model}",),
    workloads: Iterable[str] = (ONE_OF_EACH,),
    name: str = "cases",
    adapter: str = "openai",
    boots: int = 1,
    pages: Mapping[str, Respond] | None = None,
    kinds: Mapping[str, str] | None = None,
    timeouts: Timeouts | None = None,
    more: str = "",
) -> Outcome:
    """Run a matrix in the empty folder `path` and build its report.

    answers: prompt id -> what the server answers to it. The prompts form the set `cases`; a
    prompt's kind is its id, unless `kinds` says otherwise.
    variants, workloads: a flow mapping of YAML each; pages: further paths, such as /metrics.
    more: further YAML at the top level.
    """
    _write_project(path, answers, kinds or {})
    asked: list[Received] = []
    with serving(_responder(answers, pages or {}, asked)) as server:
        matrix = path / "matrix.yaml"
        matrix.write_text(
            MATRIX.format(
                name=name,
                adapter=adapter,
                url=server.url,
                variants="".join(f"  - {variant}\n" for variant in variants),
                workloads="".join(f"  - {workload}\n" for workload in workloads),
                boots=boots,
                timeouts="" if timeouts is None else f", timeouts: {_section(timeouts)}",
                more=more,
            ),
            encoding="utf-8",
        )
        exit_code, stdout, stderr = _command_line(path, matrix)
    return _outcome(path, asked, exit_code, stdout, stderr)


def measure_process(path: Path, arguments: Sequence[str], workload: str) -> Outcome:
    """The same with the scripted server as an engine of its own, which the harness starts and may
    lose; two prompts. The server keeps what it was asked for itself.
    """
    _write_project(path, dict.fromkeys(("x", "y"), ()), {})
    command = json.dumps(["{python}", "-m", "harness.scripted_server", *arguments])
    matrix = path / "matrix.yaml"
    matrix.write_text(
        f"name: cases\n"
        f"engines:\n  scripted: {{adapter: dflash2, command: {command}}}\n"
        f"variants:\n  - {{name: plain, engine: scripted, target: model}}\n"
        f"workloads:\n  - {workload}\n"
        f"schedule: {{order: listed, boots: 1}}\n",
        encoding="utf-8",
    )
    return _outcome(path, (), *_command_line(path, matrix))


def _outcome(
    path: Path, asked: Sequence[Received], exit_code: int, stdout: str, stderr: str
) -> Outcome:
    assert (path / "results").is_dir(), stderr
    (run,) = (path / "results").iterdir()
    report = path / "reports" / run.name
    return Outcome(
        exit_code=exit_code,
        folder=RunFolder.open(run),
        report=report,
        page=(report / "RESULTS.md").read_text(encoding="utf-8"),
        summary=json.loads((report / "summary.json").read_text(encoding="utf-8")),
        received=asked,
        stdout=stdout,
        stderr=stderr,
    )


def _section(timeouts: Timeouts) -> str:
    values = {name: value for name, value in asdict(timeouts).items() if value is not None}
    return json.dumps(values).replace('"', "")


def _command_line(path: Path, matrix: Path) -> tuple[int, str, str]:
    arguments = ["run", str(matrix)]
    arguments += ["--results", str(path / "results"), "--reports", str(path / "reports")]
    stdout, stderr = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.setattr(commands, "calibrate", known_calibration)
        exit_code = cli.main(arguments)
    return exit_code, stdout.getvalue(), stderr.getvalue()


def _write_project(path: Path, answers: Mapping[str, Answer], kinds: Mapping[str, str]) -> None:
    (path / "pyproject.toml").write_text("", encoding="utf-8")
    (path / "prompts").mkdir()
    for name in ("model", "drafter"):
        model_files.nothing(path / name)
    lines = [
        json.dumps(
            {
                "id": prompt_id,
                "kind": kinds.get(prompt_id, prompt_id),
                "messages": [{"role": "user", "content": prompt_id}],
                "source": "made for this test",
                "licence": "CC0-1.0",
            },
            ensure_ascii=False,
        )
        for prompt_id in answers
    ]
    text = "".join(f"{line}\n" for line in lines)
    (path / "prompts" / "cases.jsonl").write_text(text, encoding="utf-8")


def _responder(
    answers: Mapping[str, Answer], pages: Mapping[str, Respond], asked: list[Received]
) -> Respond:
    counts = dict.fromkeys(answers, 0)

    def respond(request: Received) -> Script:
        if request.path in pages:
            return pages[request.path](request)
        if request.path == "/v1/models":
            return page(json.dumps({"data": [{"id": "model"}]}))
        if request.path != "/v1/chat/completions":
            return page("{}", status=404)
        prompt = prompt_of(request)
        if prompt not in answers:  # the one token that an engine must answer to be ready
            return READY
        asked.append(request)
        answer = answers[prompt]
        chosen = answer(counts[prompt]) if callable(answer) else answer
        counts[prompt] += 1
        return chosen if isinstance(chosen, Script) else Script(sends=chosen)

    return respond


def prompt_of(request: Received) -> str:
    """As the prompt set has it, without the salt that may stand before it."""
    return re.sub(r"^\[[0-9a-f]{12}\] ", "", request.json()["messages"][-1]["content"])


READY = Script(
    sends=[(0.0, chunk({"content": "a"}) + chunk({}, "length", usage=usage(1, 1)) + DONE)]
)


# --- the helpers that the cases are written in -------------------------------------------------


def ev(payload: Mapping[str, Any]) -> bytes:
    return (
        b"data: "
        + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
        + b"\n\n"
    )


def ch(delta: Mapping[str, Any], fin: str | None = None, **others: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": fin}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return ev({**head, "choices": [choice], **others})


def us(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return usage(prompt_tokens, completion_tokens)


def C(text: str, **others: Any) -> bytes:  # noqa: N802  the list's own short names
    """Answer text."""
    return ch({"content": text}, **others)


def R(text: str, **others: Any) -> bytes:  # noqa: N802
    """Thinking text."""
    return ch({"reasoning_content": text}, **others)


def FIN(reason: str, **others: Any) -> bytes:  # noqa: N802
    """A finish reason, no token."""
    return ch({}, reason, **others)


def U(prompt_tokens: int, completion_tokens: int) -> bytes:  # noqa: N802
    """The final usage event."""
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return ev({**head, "choices": [], "usage": us(prompt_tokens, completion_tokens)})


ROLE = ch({"role": "assistant", "content": ""})
