"""MTP over HTTP and on the command line: what starts, what it says of itself, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save_file

from engines.dflash2 import __main__ as cli
from engines.dflash2 import commands
from engines.dflash2.config import HybridTargetConfig, load_target_config
from engines.dflash2.engine import load_engine
from engines.dflash2.mtp import MTPHead

from .support import Pair, complete, in_this_process, serving, write_json
from .test_cli import refused
from .test_hybrid_server import write_hybrid_drafter, write_hybrid_target

BODY = {"prompt": [9, 30, 41, 7], "temperature": 0, "max_tokens": 24, "ignore_eos": True}


def add_head(folder: Path) -> None:
    """A third shard with a random head, and the keys that say so."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["text_config"]["mtp_num_hidden_layers"] = 1
    write_json(folder / "config.json", config)
    read = load_target_config(folder)
    assert isinstance(read, HybridTargetConfig)
    noise = torch.Generator().manual_seed(5)
    tensors = {
        f"mtp.{name}": (0.3 * torch.randn(tensor.shape, generator=noise)).bfloat16()
        for name, tensor in sorted(MTPHead(read).state_dict().items())
    }
    save_file(tensors, folder / "model-3.safetensors")
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    weight_map |= dict.fromkeys(tensors, "model-3.safetensors")
    write_json(index, {"weight_map": weight_map})


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A hybrid target with an MTP head, and a DFlash 2 drafter for it."""
    folder = tmp_path_factory.mktemp("headed")
    pair = Pair(target=folder / "target", drafter=folder / "drafter")
    write_hybrid_target(pair.target)
    add_head(pair.target)
    write_hybrid_drafter(pair.drafter)
    return pair


@pytest.fixture
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_AUTOCONVERT", "0")
    monkeypatch.setattr(commands.torch, "set_num_threads", lambda num_threads: None)


@pytest.mark.parametrize("mtp_k", [1, 2, 3])
def test_greedy_text_is_the_same_with_the_head_and_the_timings_say_its_depth(
    headed: Pair, mtp_k: int
) -> None:
    answers = []
    for asked in (None, mtp_k):
        engine = load_engine(headed.target, None, dtype=torch.float64, kv_len=64, mtp_k=asked)
        with in_this_process(engine) as client:
            answers.append(complete(client, **BODY))
    plain, drafted = answers
    assert drafted["choices"] == plain["choices"]
    timings = drafted["timings"]
    assert (timings["depth"], timings["block"]) == (mtp_k, mtp_k + 1)
    assert timings["drafted"] == mtp_k * timings["rounds"] > 0
    assert len(timings["accepted_per_position"]) == mtp_k
    assert plain["timings"]["depth"] is None


def test_the_process_names_its_mode(headed: Pair) -> None:
    with serving(headed, "--mtp", "on", "--mtp-k", "2") as served:
        health = httpx.get(f"{served.url}/health", trust_env=False).json()
    assert (health["drafter"], health["depth"], health["block"]) == ("mtp", 2, 3)
    assert health["drafter_model"] is None
    assert health["selector"] is None


@pytest.mark.usefixtures("_process_as_before")
def test_a_process_drafts_in_one_way(headed: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    serve = ["serve", "--model", headed.target, "--port", 0]
    dflash2 = ["--dflash2", "on", "--dflash2-model", headed.drafter]
    message = refused(capsys, *serve, *dflash2, "--mtp", "on", "--mtp-k", 2)
    assert "--mtp on and --dflash2 on: a process drafts in one way" in message
    assert "--mtp on needs --mtp-k K" in refused(capsys, *serve, "--mtp", "on")
    message = refused(capsys, *serve, "--mtp-k", 3)
    assert "--mtp-k 3 is given but --mtp is off" in message


@pytest.mark.usefixtures("_process_as_before")
def test_dflash2_replaces_the_head_and_says_so(
    headed: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "--model", str(headed.target), "--prompt", "The", "--max-tokens", "4"]
    assert cli.main([*command, "--dflash2", "on", "--dflash2-model", str(headed.drafter)]) == 0
    notice = "the target's own MTP head stays unused: --dflash2 on drafts in its place"
    assert notice in capsys.readouterr().err
    assert cli.main([*command, "--mtp", "on", "--mtp-k", "1"]) == 0
    assert notice not in capsys.readouterr().err


@pytest.mark.usefixtures("_process_as_before")
def test_mtp_on_a_target_without_a_head_is_refused(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["serve", "--model", str(pair.target), "--port", "0", "--mtp", "on", "--mtp-k", "1"]
    assert cli.main(asked) == 2
    assert "names no MTP head" in capsys.readouterr().err.splitlines()[-1]
