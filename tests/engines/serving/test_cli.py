"""The command line: what starts, what is refused with exit code 2 and one line, how it stops."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from engines.dflash2 import __main__ as cli
from engines.dflash2 import commands

from .support import Pair, serving, wait_until, write_json


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands set torch's thread count for their process; these tests share one."""
    # The tiny drafter's rows are no multiples of 64, so it is served as it is.
    monkeypatch.setenv("DFLASH2_AUTOCONVERT", "0")
    monkeypatch.setattr(commands.torch, "set_num_threads", lambda num_threads: None)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one message on stderr of a command that must end with exit code 2."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dflash2: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_generate_prints_the_text_and_a_line_of_timings(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "generate",
        "--model",
        str(pair.target),
        "--prompt",
        "The quick",
        "--max-tokens",
        "9",
    ]
    assert cli.main(command) == 0
    plain = capsys.readouterr()
    drafted_options = ["--dflash2", "on", "--dflash2-model", str(pair.drafter)]
    assert cli.main([*command, *drafted_options]) == 0
    drafted = capsys.readouterr()
    assert plain.out == drafted.out
    assert plain.out.strip()
    assert plain.err.startswith("9 tokens, ended by length; prompt 4 tokens in ")
    assert "rounds" not in plain.err
    assert "acceptance length" in drafted.err


def test_generate_can_ask_as_a_chat(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", str(pair.target), "--prompt", "hi", "--max-tokens", "2"]
    assert cli.main([*command, "--chat"]) == 0
    assert "prompt 21 tokens" in capsys.readouterr().err  # as the server counts this chat


def test_check_prints_what_it_found(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["check", "--model", str(pair.target), "--dflash2-model", str(pair.drafter)]) == 0
    )
    found = capsys.readouterr().out
    assert "qwen3, 4 layers, hidden 64, vocabulary 320, 512 positions" in found
    assert "320 tokens, chat template: yes, stop ids: [0, 2]" in found
    assert "DFlash 2, 2 layers, depth 7, block 8, window 64, taps [0, 1, 2]" in found


def test_the_drafter_switch_and_the_drafter_go_together(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--model", pair.target]
    assert "--dflash2 on needs --dflash2-model DIR" in refused(capsys, *serve, "--dflash2", "on")
    message = refused(capsys, *serve, "--dflash2-model", pair.drafter)
    assert f"--dflash2-model {pair.drafter} is given but --dflash2 is off" in message


def test_the_thread_that_loaded_has_ended_before_anything_is_served(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its OpenMP pool would stay, and slow down every step of the thread that decodes."""
    threads: list[threading.Thread] = []
    load_engine = commands.load_engine

    def load_and_tell(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread())
        return load_engine(*arguments, **options)

    def look(*_: object) -> None:
        assert [thread.is_alive() for thread in threads] == [False]

    monkeypatch.setattr(commands, "load_engine", load_and_tell)
    monkeypatch.setattr(commands, "_run", look)
    assert cli.main(["serve", "--model", str(pair.target), "--kv-len", "64", "--port", "0"]) == 0
    assert len(threads) == 1


def test_a_missing_model_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nowhere"
    assert str(missing) in refused(capsys, "serve", "--model", missing, "--port", 0)
    assert str(missing) in refused(capsys, "check", "--model", missing)


def test_a_port_in_use_is_told_before_the_model_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        # The model does not even exist, yet the port is what is complained about.
        message = refused(capsys, "serve", "--model", tmp_path / "nowhere", "--port", port)
    assert f"port {port} on 127.0.0.1 is in use; give another --port" in message


def test_a_port_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "serve", "--model", tmp_path, "--port", 70_000)
    assert "cannot listen on 127.0.0.1 port 70000" in message


def test_a_drafter_of_another_target_is_refused(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafter = Path(shutil.copytree(pair.drafter, tmp_path / "drafter"))
    config = json.loads((drafter / "config.json").read_text())
    write_json(drafter / "config.json", {**config, "num_target_layers": 5})
    arguments = ["--model", pair.target, "--dflash2-model", drafter]
    message = refused(capsys, "serve", *arguments, "--dflash2", "on", "--port", 0)
    assert "num_target_layers is 5 in the drafter and 4 in the target" in message
    assert "num_target_layers" in refused(capsys, "check", *arguments)


def test_a_missing_tensor_is_named(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Path(shutil.copytree(pair.target, tmp_path / "target"))
    tensors = load_file(target / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, target / "model.safetensors")
    message = refused(capsys, "serve", "--model", target, "--port", 0)
    assert "missing (model.norm.weight)" in message


def test_a_tokenizer_of_another_model_is_refused(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Path(shutil.copytree(pair.target, tmp_path / "target"))
    config = json.loads((target / "config.json").read_text())
    write_json(target / "config.json", {**config, "vocab_size": 300})
    message = refused(capsys, "check", "--model", target)
    assert "ids up to 319, but the model's vocab_size is 300" in message


def test_a_kv_len_beyond_the_models_positions_is_refused(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "serve", "--model", pair.target, "--kv-len", 513, "--port", 0)
    assert "--kv-len is 513" in message
    assert "give at most 512" in message


def test_a_prompt_that_fills_the_context_is_refused(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", pair.target, "--kv-len", 4, "--prompt", "The quick"]
    assert "the prompt has 4 tokens" in refused(capsys, "generate", *options)


@pytest.mark.parametrize(
    "wrong", [["--temperature", "-1"], ["--max-tokens", "0"], ["--dflash2", "maybe"]]
)
def test_argument_errors_quote_what_was_written(
    pair: Pair, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["generate", "--model", str(pair.target), "--prompt", "x", *wrong])
    assert exit_.value.code == 2
    assert wrong[1] in capsys.readouterr().err


def test_sigterm_ends_a_running_answer_with_an_error_event_and_then_the_process(
    pair: Pair,
) -> None:
    body = {"prompt": "x", "max_tokens": 500, "stream": True, "ignore_eos": True}
    lines: list[str] = []
    with serving(pair, "--kv-len", "512", "--stop-timeout-s", "0") as served:
        started = threading.Event()

        def read() -> None:
            url = f"{served.url}/v1/completions"
            with httpx.stream("POST", url, json=body, timeout=30) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    started.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert started.wait(timeout=60)
        served.process.send_signal(signal.SIGTERM)
        # A second or two on an idle machine; this is for the busiest one.
        assert served.process.wait(timeout=60) == 0
        reader.join(timeout=10)
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"]["code"] == "shutting_down"


def test_serve_has_its_bounds_from_its_options_and_ends_well_after_a_running_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASH2_API_KEY", "sk-secret")
    options = ["--dflash2", "on", "--dflash2-model", str(pair.drafter), "--kv-len", "512"]
    options += ["--max-concurrent-requests", "2", "--max-waiting", "3", "--draft-until-batch", "0"]
    body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "temperature": 0}
    headers = {"Authorization": "Bearer sk-secret"}
    answers: list[httpx.Response] = []
    with serving(pair, *options, "--stop-timeout-s", "60") as served:

        def ask() -> None:
            url = f"{served.url}/v1/completions"
            answers.append(httpx.post(url, json=body, headers=headers, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: httpx.get(f"{served.url}/health").json()["running"] == 1)
        health = httpx.get(f"{served.url}/health").json()
        assert httpx.get(f"{served.url}/v1/models").status_code == 401
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(timeout=60) == 0
        asking.join(timeout=10)
    (answer,) = answers
    assert answer.json()["usage"]["completion_tokens"] == 500
    # The drafter is there, but one request is more than draft-until-batch allows.
    assert (answer.json()["timings"]["rounds"], answer.json()["timings"]["plain_steps"]) == (0, 499)
    names = ("max_concurrent_requests", "max_waiting", "draft_until_batch", "kv_capacity_tokens")
    assert [health[name] for name in names] == [2, 3, 0, 2 * 512]


def test_a_command_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("engines.gguf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)  # which makes its import fail
    assert "pip install '.[gguf]'" in refused(capsys, "export-gguf", "target", "out.gguf")
