"""`dflashbench record`: what is written of an engine, and what is left out."""

import json
import socket
from pathlib import Path

import pytest

from harness.cli import main
from harness.config import load_matrix
from harness.errors import ConfigError, UsageError
from harness.run import boot, commands, recording

MATRIX = boot.PROJECT / "configs" / "matrices" / "three-engines.yaml"


def project(folder: Path, *options: str, environment: str = "{}") -> Path:
    """A matrix whose one engine is the scripted server."""
    words = ["{python}", "-m", "harness.scripted_server", "--prefill-ms", "1", *options]
    (folder / "pyproject.toml").touch()
    (folder / "prompts").mkdir()
    prompt = {"id": "p", "kind": "code", "source": "s", "licence": "l"}
    line = json.dumps({**prompt, "messages": [{"role": "user", "content": "Hi"}]})
    (folder / "prompts" / "one.jsonl").write_text(line + "\n")
    matrix = folder / "m.yaml"
    matrix.write_text(
        "name: m\n"
        f"engines: {{e: {{adapter: dflash2, command: {json.dumps(words)}, "
        f"environment: {environment}}}}}\n"
        "variants: [{name: v, engine: e, target: owner/model}]\n"
        "workloads: [{kind: generate, prompts: one, max_tokens: 9}]\n"
    )
    return matrix


def test_an_engine_is_recorded_from_start_to_stop(tmp_path, capsys):
    out = tmp_path / "recorded"
    assert main(["record", "e", "--matrix", str(project(tmp_path)), "--out", str(out)]) == 0
    names = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    assert names == {path.name for path in out.iterdir()}
    assert names == {
        *("README.md", "recording.json", "start.log", "refused.json", "posted.json"),
        *("health.json", "health_busy.json", "metrics_before.txt", "metrics_after.txt"),
        *(f"{q}.{kind}" for q in ("prose", "copy", "cut") for kind in ("sse", "reads.json")),
    }
    told = json.loads((out / "recording.json").read_text())
    assert (told["adapter"], told["version"], told["drafter"]) == ("dflash2", "scripted", None)
    assert [each["body"]["max_tokens"] for each in told["requests"]] == [64, 96, 8]
    rendered, likely = json.loads((out / "posted.json").read_text())
    assert (rendered["path"], rendered["http_status"]) == ("/tokenize", 200)
    assert bytes(rendered["answer"]["tokens"]).startswith(b"Explain in three")
    assert likely["body"]["prompt"] == rendered["answer"]["tokens"]
    for question in ("prose", "copy", "cut"):
        reads = json.loads((out / f"{question}.reads.json").read_text())
        assert sum(length for _, length in reads) == (out / f"{question}.sse").stat().st_size
        assert [at_ns for at_ns, _ in reads] == sorted(at_ns for at_ns, _ in reads)


def test_what_belongs_to_the_machine_is_left_out(tmp_path):
    """Secrets are here words that the scripted server uses: a name it serves, a part of events."""
    out, secrets = tmp_path / "recorded", ("owner/model", "completion.chunk")
    environment = "{{PASSWORD_A: {}, PASSWORD_B: {}}}".format(*secrets)
    matrix = project(tmp_path, environment=environment)
    assert main(["record", "e", "--matrix", str(matrix), "--out", str(out)]) == 0
    for path in out.iterdir():
        assert not any(secret in path.read_text() for secret in secrets), path.name
    assert '"object":"chat.xxxxxxxxxxxxxxxx"' in (out / "cut.sse").read_text()


def test_a_log_keeps_no_port_no_address_and_no_folder(tmp_path):
    clean = recording._Scrubber(
        secrets=(),
        words={"127.0.0.1:41234": "127.0.0.1:8000", "box": "host"},
        port=41234,
    )
    (tmp_path / "models").mkdir()
    said = f"box: GET /v1/chat/completions of {tmp_path}/models/a.gguf at 10.1.2.3, port 41234"
    assert clean.log(said) == (
        "host: GET /v1/chat/completions of /.../models/a.gguf at (address), port 8000"
    )
    page = "tokens 41234"
    assert clean(page) == page  # a figure that happens to be the port's


def test_files_that_are_there_are_not_written_over(tmp_path):
    out = tmp_path / "recorded"
    out.mkdir()
    (out / "notes.txt").touch()
    matrix = load_matrix(project(tmp_path))
    with pytest.raises(UsageError, match="holds files already"):
        commands.run_until_stopped(recording.record(matrix.variants[0], {}, out))


def test_a_server_that_runs_needs_its_adapter_and_its_model(capsys):
    assert main(["record", "http://127.0.0.1:9", "--adapter", "vlm", "--model", "m"]) == 4
    assert "needs --model and --adapter, one of dflash2, llamacpp, " in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(tmp_path, capsys):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        words = ["--adapter", "vllm", "--model", "m", "--out", str(tmp_path / "out")]
        assert main(["record", url, *words]) == 3
    assert f"nothing usable at {url}" in capsys.readouterr().err


def test_the_variant_that_drafts_is_recorded_unless_another_is_named(monkeypatch):
    monkeypatch.chdir(boot.PROJECT)
    matrix = load_matrix(boot.PROJECT / "configs" / "matrices" / "quickstart.yaml")
    engine = matrix.variants[0].engine.name
    plain = next(each for each in matrix.variants if each.drafter is None)
    first = recording.variant_of(matrix, engine, None)
    assert first.drafter is not None
    assert recording.variant_of(matrix, engine, plain.name) == plain
    with pytest.raises(ConfigError, match=f"has no engine 'vlm' that a variant uses: {engine}"):
        recording.variant_of(matrix, "vlm", None)
    with pytest.raises(UsageError, match="has no variant 'gone'"):
        recording.variant_of(matrix, engine, "gone")
