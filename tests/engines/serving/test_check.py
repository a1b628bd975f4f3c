"""`check --device` and `serve --require-device`: what they print, and what they cannot do here."""

from __future__ import annotations

import pytest
import torch

from engines.dflash2 import __main__ as cli
from engines.dflash2 import commands
from engines.dflash2.engine import load_engine
from engines.dflash2.selfcheck import DeviceOnly, Finding, HostFallbackError

from .support import Pair

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def test_check_prints_the_errors_on_a_device_and_what_they_do_not_measure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["check", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    for part in ("7 x 248320", "4 edge rows of 4097", "1792 scores", "context 17", "context 2055"):
        assert part in printed
    assert "BAD" not in printed
    assert "no model, and no speed" in printed


def test_check_fails_where_a_finding_is_bad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = Finding(name="attention", ok=False, text="largest error 1, limit 1e-06")
    monkeypatch.setattr(commands, "check_device", lambda device: [bad])
    assert cli.main(["check", "--device", "cpu"]) == 1
    assert "attention   BAD largest error 1" in capsys.readouterr().out


def test_check_takes_a_device_and_a_pair_together(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(pair.target), "--dflash2-model", str(pair.drafter)]
    assert cli.main(["check", "--device", "cpu", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "1792 scores" in printed
    assert "every tensor is there" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "nothing to check; give --model DIR, --device"),
        (["check", "--dflash2-model", "x"], "--dflash2-model needs --model DIR"),
        (
            ["serve", "--model", "x", "--require-device"],
            "--require-device needs --device cuda",
        ),
    ],
)
def test_arguments_that_ask_for_nothing_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@no_cuda
def test_a_device_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--device", "cuda"]) == 2
    assert "this torch sees no CUDA device" in capsys.readouterr().err


def test_an_answer_computed_elsewhere_is_noticed(pair: Pair) -> None:
    """What `--require-device` does before it serves, with the CPU as the wrong place."""
    engine = load_engine(pair.target, pair.drafter, dtype=torch.float32, kv_len=64)
    with DeviceOnly(torch.device("cpu")):
        commands.answer_once(engine)
    with (
        DeviceOnly(torch.device("meta")),
        pytest.raises(HostFallbackError, match="ran on cpu, but meta was required"),
    ):
        commands.answer_once(engine)
