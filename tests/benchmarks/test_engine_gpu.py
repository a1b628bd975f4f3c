"""The GPU benchmark, rehearsed on the CPU at small size, and its table with nothing in it."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.engine import gpu
from benchmarks.engine.gpu_models import full_shapes, small_shapes
from engines.dflash2.config import check_pair
from engines.dflash2.conversion.published import source_shapes
from engines.dflash2.drafter import DFlash2DraftModel
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM

TARGET_PARAMETERS = 26_895_998_464  # of Qwen3.8-27B's text part, as published


def test_the_target_has_as_many_parameters_as_the_published_one():
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(full_shapes().target)
    assert sum(each.numel() for each in model.parameters()) == TARGET_PARAMETERS
    assert len(model.state_dict()) == 851


def test_the_drafter_has_the_published_tensors():
    with torch.device("meta"):
        model = DFlash2DraftModel(full_shapes().drafter)
    found = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert found == source_shapes()


@pytest.mark.parametrize("shapes", [full_shapes(), small_shapes()])
def test_drafter_and_target_belong_together(shapes):
    check_pair(shapes.drafter, shapes.target)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> dict:
    raw = tmp_path_factory.mktemp("gpu") / "gpu.jsonl"
    gpu.run(raw, small=True)
    return json.loads(raw.read_text())


def test_a_rehearsal_measures_every_figure(rehearsal: dict):
    keys = {figure.key for figure in gpu.figures(gpu.SMALL.concurrency)}
    assert keys <= rehearsal["figures"].keys()
    assert all(value > 0 for value in rehearsal["figures"].values())


def test_a_rehearsal_says_that_it_is_one(rehearsal: dict):
    assert rehearsal["rehearsal"]
    assert rehearsal["device"] == "CPU"


def test_attention_and_selector_pass_their_bounds_in_a_rehearsal(rehearsal: dict):
    assert rehearsal["figures"]["checks_passed"] == 1.0


def test_a_figure_stands_beside_its_goal():
    told = {"rehearsal": False, "figures": {"roof_share": 0.79, "top_k_ms": 0.15}}
    lines = {line.split(" | ")[0]: line for line in gpu.table(told).splitlines()}
    assert lines["| plain, c = 1: share of the read roof"].endswith(
        "| at least 0.8 | 0.79 | **missed** |"
    )
    searching = next(line for name, line in lines.items() if "248,320" in name)
    assert searching.endswith("| at most 0.15 | 0.150 | met |")


def test_a_rehearsal_meets_no_goal():
    told = {"rehearsal": True, "figures": {"roof_share": 0.9}}
    assert "met" not in gpu.table(told)
    assert "rehearsed" in gpu.table(told)


def test_a_table_without_a_run_says_so_in_every_line():
    lines = gpu.table(None).splitlines()[2:]
    assert len(lines) == len(gpu.figures(gpu.FULL.concurrency))
    assert all("not run: no card was at hand" in line for line in lines)


def test_without_a_gpu_only_a_rehearsal_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("sys.argv", ["gpu", "--raw", str(tmp_path / "raw")])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--small rehearses"):
        gpu.main()
