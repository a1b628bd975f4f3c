"""ENC cases: prompts reach the engine as the file's bytes, whatever locale or checkout there is."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.prompts import load_prompt_set
from harness.records import Manifest
from harness.scripted_server import DONE, Received, Script, page, serving, usage
from harness.store import RunFolder
from tests.harness import model_files
from tests.harness.cases.end_to_end import FIN, READY, ROLE, C

CHECKOUT = Path(__file__).parents[3]
PROMPT = "Erkläre “Käse” – 中文 🚀"
LOCALES = {
    "utf-8": {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    # as on Windows: it has Käse and no rocket
    "cp1252": {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"},
}

MATRIX = """\
name: odd
engines:
  scripted: {adapter: openai, kind: attach, url: "%s"}
variants:
  - {name: "Käse 🚀", engine: scripted, target: model-kaese}
workloads:
  - {kind: generate, prompts: odd, repetitions: 1, max_tokens: 64, cache: warm}
schedule: {order: listed, boots: 1}
"""

WITHOUT_CALIBRATION = """\
import sys
from harness import cli
from harness.run import commands
from tests.e2e.conftest import known_calibration

commands.calibrate = known_calibration
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


def line(text: str, prompt_id: str = "p1") -> str:
    return json.dumps(
        {
            "id": prompt_id,
            "kind": "prose – 中文",
            "messages": [{"role": "user", "content": text}],
            "source": "made for this test",
            "licence": "CC0-1.0",
        },
        ensure_ascii=False,
    )


def dflashbench(path: Path, environment: dict[str, str], *arguments: str) -> tuple[int, bytes]:
    """The command line in a process of its own; what it said on stdout and stderr together."""
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", str(path / "driver.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=path,
        env={**os.environ, **environment, "PYTHONPATH": str(CHECKOUT)},
        check=False,
    )
    return done.returncode, done.stdout


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What one locale made of it."""

    bodies: list[bytes]  # as the server got them
    manifest: Manifest
    report: Path
    said: dict[str, tuple[int, bytes]]  # command -> exit code, output


def run_under(path: Path, environment: dict[str, str]) -> Ran:
    bodies: list[bytes] = []

    def respond(request: Received) -> Script:
        if request.path != "/v1/chat/completions":
            return page("{}", status=404)
        if "Hello" in request.body.decode():
            return READY
        bodies.append(request.body)
        end = FIN("stop", usage=usage(9, 2)) + DONE
        return Script(sends=[(0.02, ROLE + C("Käse ")), (0.1, C("🚀") + end)])

    path.mkdir()
    (path / "pyproject.toml").write_text("", encoding="utf-8")
    (path / "driver.py").write_text(WITHOUT_CALIBRATION, encoding="utf-8")
    (path / "prompts").mkdir()
    model_files.nothing(path / "model-kaese")
    (path / "prompts" / "odd.jsonl").write_bytes((line(PROMPT) + "\n").encode())
    with serving(respond) as server:
        (path / "odd.yaml").write_text(MATRIX % server.url, encoding="utf-8")
        said = {"run": dflashbench(path, environment, "run", "odd.yaml")}
    if environment is not LOCALES["utf-8"]:
        said["show"] = dflashbench(path, environment, "show", "latest")
    if environment is LOCALES["ascii"]:
        said["plan"] = dflashbench(path, environment, "plan", "odd.yaml")
        said["json"] = dflashbench(path, environment, "show", "latest", "--json")
    assert said["run"][0] in (0, 3), said["run"][1].decode()  # short answers make it invalid
    (run,) = (path / "results").iterdir()
    return Ran(
        bodies=bodies,
        manifest=RunFolder.open(run).manifest,
        report=path / "reports" / run.name,
        said=said,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    folder = tmp_path_factory.mktemp("locales")
    return {name: run_under(folder / name, environment) for name, environment in LOCALES.items()}


def test_b123_the_same_bytes_are_sent_and_hashed_under_every_locale(runs: dict[str, Ran]) -> None:
    there, *others = (runs[name] for name in LOCALES)

    for here in others:
        assert here.bodies == there.bodies
        assert here.manifest.prompt_sets == there.manifest.prompt_sets
    (body,) = there.bodies
    assert json.loads(body)["messages"] == [{"role": "user", "content": PROMPT}]
    assert there.manifest.prompt_kinds == {"odd": {"p1": "prose – 中文"}}


def test_b123_a_page_of_code_for_the_west_shows_what_it_lacks_too(runs: dict[str, Ran]) -> None:
    for code, output in runs["cp1252"].said.values():
        assert code in (0, 3), output.decode(errors="replace")
        assert b"Traceback" not in output
    assert "Käse 🚀".encode() in runs["cp1252"].said["show"][1]


def test_b123_no_command_stumbles_over_a_sign_that_the_locale_lacks(runs: dict[str, Ran]) -> None:
    ran = runs["ascii"]

    assert list(ran.said) == ["run", "show", "plan", "json"]
    for command, (code, output) in ran.said.items():
        assert code in (0, 3), (command, output.decode(errors="replace"))
        assert b"Traceback" not in output
        ours = [line for line in output.splitlines() if b"/harness/" in line]
        assert not [line for line in ours if b"EncodingWarning" in line]
    assert "Käse 🚀".encode() in ran.said["plan"][1]
    assert "Käse 🚀".encode() in ran.said["show"][1]
    rows = [json.loads(row) for row in ran.said["json"][1].decode("utf-8").splitlines()]
    assert {row["variant"] for row in rows} == {"Käse 🚀"}
    text = (ran.report / "RESULTS.md").read_text(encoding="utf-8")
    assert "| Käse 🚀 |" in text
    assert {row["kind"] for row in rows} == {"all", "prose – 中文"}


# --- B124 -----------------------------------------------------------------------------------------

UNIX, WINDOWS = "def f():\n    return 1\n", "def f():\r\n    return 1\r\n"


def written(path: Path, name: str, data: bytes) -> Path:
    (path / f"{name}.jsonl").write_bytes(data)
    return path / f"{name}.jsonl"


def test_b124_a_checkout_with_windows_line_ends_sends_and_hashes_the_same(tmp_path: Path) -> None:
    unix = load_prompt_set(written(tmp_path, "unix", f"{line(UNIX)}\n{line('b', 'p2')}\n".encode()))
    windows = load_prompt_set(
        written(tmp_path, "windows", f"{line(UNIX)}\r\n{line('b', 'p2')}\r\n".encode())
    )

    assert windows.sha256 == unix.sha256
    assert windows.prompts == unix.prompts
    assert "\r" not in windows.prompts[0].messages[0]["content"]


def test_b124_line_ends_in_the_prompt_itself_are_sent_as_they_are_and_are_another_hash(
    tmp_path: Path,
) -> None:
    unix = load_prompt_set(written(tmp_path, "unix", f"{line(UNIX)}\n".encode()))
    windows = load_prompt_set(written(tmp_path, "windows", f"{line(WINDOWS)}\n".encode()))

    assert windows.prompts[0].messages[0]["content"] == WINDOWS
    assert windows.sha256 != unix.sha256


def test_b124_prompts_are_checked_out_alike_everywhere() -> None:
    attributes = (CHECKOUT / ".gitattributes").read_text(encoding="utf-8").splitlines()

    assert "prompts/*.jsonl text eol=lf" in attributes
    for path in sorted((CHECKOUT / "prompts").glob("*.jsonl")):
        assert b"\r" not in path.read_bytes(), path.name
