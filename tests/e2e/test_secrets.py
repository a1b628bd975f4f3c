"""A planted key stands in no file that the harness writes, wherever it was planted."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness import cli
from harness.store import latest_run

from .conftest import Project

KEY = "sk-planted0123456789abcdef"
WORD = "planted0123456789abcdef"  # of the key, without the sign that would give it away

ATTACHED = """
name: planted
engines:
  remote: {{adapter: openai, kind: attach, url: "{url}", api_key_env: PLANTED_API_KEY}}
variants:
  - {{name: plain, engine: remote, target: model}}
sampling: {{temperature: 0}}
workloads:
  - {{kind: generate, prompts: two, warmup: two_warmup, repetitions: 2, max_tokens: 8}}
schedule: {{order: listed, boots: 1}}
"""


class Talkative(BaseHTTPRequestHandler):
    """Answers who has the key, and repeats the key wherever a server may: headers, an error."""

    answered = 0

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "model", "object": "model"}], "key": self._key()})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).answered += 1
        if self._key() != f"Bearer {KEY}" or self.answered % 3 == 0:
            self._send(401, {"error": {"message": f"Incorrect API key provided: {self._key()}"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("X-Api-Key", self._key())
        self.end_headers()
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        for chunk in (
            {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ):
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _key(self) -> str:
        return self.headers.get("Authorization", "")

    def _send(self, status: int, told: object) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Talkative)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", KEY)
    monkeypatch.setenv("SOME_TOKEN", KEY)


def found_in(folder: Path) -> list[Path]:
    """Compressed files are none of ours to look into but one, which is unpacked."""
    import gzip

    guilty = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            if WORD.encode() in data:
                guilty.append(path.relative_to(folder))
    return guilty


def call(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_a_key_in_headers_errors_and_the_environment_is_in_no_file(
    project: Project, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run, report, compare, publish, export: a third of the answers repeats the key."""
    path, out = project.path, project.path / "out"
    (path / "planted.yaml").write_text(ATTACHED.format(url=server))
    where = ("--results", project.results)
    reports = ("--reports", out / "reports")

    assert call("run", path / "planted.yaml", *where, *reports) in (0, 3)
    run = latest_run(project.results)
    requests = (run / "requests.jsonl").read_text()
    assert "Incorrect API key provided" in requests  # the error is told, without its key
    assert call("report", "latest", *where, *reports) == 0
    call(
        "compare", "latest", "latest", *where, "--junit", out / "x.xml", "--markdown", out / "x.md"
    )
    assert call("publish", out / "site", *where, *reports) == 0
    assert call("export", "latest", out / "exported", *where) == 0

    assert found_in(project.results) == []
    assert found_in(out) == []
    told = capsys.readouterr()
    assert WORD not in told.out + told.err


@pytest.mark.parametrize(
    "place",
    [
        f'url: "http://user:{KEY}@127.0.0.1:9"',
        f'url: "http://127.0.0.1:9", api_key: "{KEY}"',
        f'url: "http://127.0.0.1:9", environment: {{{{MY_TOKEN: "{KEY}"}}}}',
    ],
    ids=["url", "key", "environment"],
)
def test_a_key_in_the_matrix_is_refused_and_not_repeated(
    project: Project, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    written = ATTACHED.replace('url: "{url}", api_key_env: PLANTED_API_KEY', place)
    (project.path / "planted.yaml").write_text(written.format())

    assert call("run", project.path / "planted.yaml", "--results", project.results) == 4

    told = capsys.readouterr()
    assert WORD not in told.out + told.err
    assert not project.results.exists()


def test_a_key_in_another_tools_file_is_not_imported(tmp_path: Path) -> None:
    """aiperf and vLLM write the command's options and the user's metadata into their results."""
    (tmp_path / "in").mkdir()
    secret = {"api_key": KEY, "headers": {"Authorization": f"Bearer {KEY}"}, "key": KEY}
    throughput = {"unit": "tokens/sec", "avg": 5.0}
    told = {
        "aiperf": {"output_token_throughput": throughput, "input_config": {"endpoint": secret}},
        "vllm-bench-serve": {
            **secret,
            "model_id": f"http://u:{WORD}@host/m?api_key={WORD}",
            "output_throughput": 5.0,
        },
        "guidellm": {
            "args": secret,
            "benchmarks": [
                {
                    "config": {"model": KEY},
                    "metrics": {"requests_per_second": {"successful": {"mean": 5.0}}},
                }
            ],
        },
    }
    for tool, document in told.items():
        path = tmp_path / "in" / f"{tool}.json"
        path.write_text(json.dumps(document))
        assert call("import", tool, path, "--as", tool, "--results", tmp_path / "results") == 0

    assert found_in(tmp_path / "results") == []
    assert len(os.listdir(tmp_path / "results" / "imported")) == 3
