"""Checks that hold checkpoints against each other, and the facts of their files that they read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import checks
from harness.analysis import dataset
from harness.cell_view import CellView
from harness.errors import ConfigError
from harness.records import Level, Model
from harness.run import files

from . import model_files, synthetic

TARGET = {"hidden_size": 320, "vocab_size": 2048, "num_hidden_layers": 10}
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 320,
    "vocab_size": 2048,
    "num_target_layers": 10,
    "dflash_config": {"block_size": 8, "mask_token_id": 3, "target_layer_ids": [1, 4, 7]},
}


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> CellView:
    """k = 7, by the drafter demo-dflash2 for the target demo-dense."""
    folder = synthetic.write_run(
        tmp_path_factory.mktemp("results"), synthetic.matrix(levels=(), boots=2)
    )
    (view,) = [view for view in dataset.load(folder).views if view.cell.variant == "DFlash2"]
    return view


def level_of(check: str, view: CellView) -> Level:
    return checks.CHECKS[check].judge(view).level


def message_of(check: str, view: CellView) -> str:
    return checks.CHECKS[check].judge(view).message


def with_files(
    view: CellView,
    *,
    target: Mapping[str, Any] = TARGET,
    drafter: Mapping[str, Any] = DRAFTER,
    head: Mapping[str, str] | None = None,
    **of_drafter: Any,
) -> CellView:
    models = {
        "demo-dense": {
            "path": "models/target",
            "config": target,
            "weights": {"bytes": {"layers": 1000}, "head": head or {}},
        },
        "demo-dflash2": {
            "path": "models/drafter",
            "hash": "d" * 12,
            "config": drafter,
            **of_drafter,
        },
    }
    return replace(view, models=models)


def on_vllm(view: CellView, *, version: str | None, runner: str | None = "V2") -> CellView:
    told = {} if runner is None else {"runner": runner}
    boots = tuple(replace(boot, version=version, health=told) for boot in view.boots)
    return replace(view, cell=replace(view.cell, adapter="vllm", drafter="dflash"), boots=boots)


ALL = ("k_le_block", "lm_head_plain", "drafter_geometry", "drafter_differs", "speculator_kind")


@pytest.mark.parametrize("check", ALL)
def test_models_whose_files_are_elsewhere_are_accused_of_nothing(
    drafted: CellView, check: str
) -> None:
    assert level_of(check, replace(drafted, models={})) == "ok"


@pytest.mark.parametrize("check", ALL)
def test_a_pair_that_fits_is_accused_of_nothing(drafted: CellView, check: str) -> None:
    assert level_of(check, with_files(drafted)) == "ok"


# --- the drafter for the target -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 512}, "its hidden_size is 512, the target's hidden_size 320"),
        ({"vocab_size": 4096}, "its vocab_size is 4096, the target's vocab_size 2048"),
        ({"num_target_layers": 64}, "its num_target_layers is 64, the target's num_hidden_layers"),
        (
            {"dflash_config": {"target_layer_ids": [1, 4, 10]}},
            "it reads layer 10 of a target with 10",
        ),
        ({"dflash_config": {"mask_token_id": 2048}}, "its mask token is 2048, in a vocabulary of"),
    ],
)
def test_a_drafter_of_another_target_is_invalid(
    drafted: CellView, changes: dict[str, Any], words: str
) -> None:
    misfit = with_files(drafted, drafter={**DRAFTER, **changes})

    assert level_of("drafter_geometry", misfit) == "invalid"
    assert words in message_of("drafter_geometry", misfit)


def test_a_target_that_also_sees_keeps_its_sizes_one_level_deeper(drafted: CellView) -> None:
    outer = {"text_config": TARGET, "hidden_size": 99, "vision_config": {}}

    assert level_of("drafter_geometry", with_files(drafted, target=outer)) == "ok"


def test_a_draft_model_that_reads_tokens_alone_may_have_any_size(drafted: CellView) -> None:
    small = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "vocab_size": 2048}
    view = with_files(drafted, drafter=small)
    view = replace(view, cell=replace(view.cell, drafter="draft-simple"))

    assert level_of("drafter_geometry", view) == "ok"


def test_a_depth_beyond_the_block_of_the_checkpoint_is_invalid_whatever_the_engine_says(
    drafted: CellView,
) -> None:
    """A block of 8 is the token that is known and 7 drafts."""
    at = with_files(drafted)

    assert level_of("k_le_block", at) == "ok"
    assert level_of("k_le_block", replace(at, cell=replace(at.cell, k=8))) == "invalid"


def test_a_dflash_1_checkpoint_under_the_name_of_dflash_2_is_invalid(drafted: CellView) -> None:
    older = with_files(drafted, drafter={**DRAFTER, "architectures": ["DFlashDraftModel"]})

    assert level_of("speculator_kind", older) == "invalid"
    assert "DFlashDraftModel" in message_of("speculator_kind", older)


@pytest.mark.parametrize(("runner", "level"), [("V2", "ok"), ("V1", "invalid"), (None, "warning")])
def test_vllm_drafts_with_a_dflash_2_checkpoint_as_dflash_1_unless_it_ran_v2(
    drafted: CellView, runner: str | None, level: Level
) -> None:
    view = on_vllm(with_files(drafted), version="0.32.0", runner=runner)

    assert level_of("speculator_kind", view) == level


def test_vllms_runner_does_not_matter_to_a_dflash_1_checkpoint(drafted: CellView) -> None:
    older = with_files(drafted, drafter={**DRAFTER, "architectures": ["DFlashDraftModel"]})

    assert level_of("speculator_kind", on_vllm(older, version="0.27.1", runner="V1")) == "ok"


# --- the checkpoint that was published ------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "level"),
    [
        (None, "ok"),
        ("models/drafter", "ok"),
        ("d" * 12, "ok"),
        ("demo-dflash2", "ok"),
        ("somebody/else", "warning"),
    ],
)
def test_a_drafter_that_stands_in_for_the_published_one_is_a_warning(
    drafted: CellView, published: str | None, level: Level
) -> None:
    assert level_of("drafter_differs", with_files(drafted, published=published)) == level


# --- the target's LM head -------------------------------------------------------------------------

PLAIN_HEAD = {"lm_head.weight": "BF16"}
SCALED_HEAD = {"lm_head.weight": "U8", "lm_head.weight_scale": "F8_E4M3"}


@pytest.mark.parametrize(
    ("head", "version", "level"),
    [
        (PLAIN_HEAD, "0.27.1", "ok"),
        ({}, "0.27.1", "ok"),  # tied: the embedding is the head
        (SCALED_HEAD, "0.27.1", "invalid"),
        ({"lm_head.weight": "F8_E4M3"}, "0.31.2", "invalid"),
        (SCALED_HEAD, "0.32.0", "ok"),
        (SCALED_HEAD, "v1.0", "ok"),
        (SCALED_HEAD, None, "warning"),
    ],
)
def test_vllm_before_0_32_runs_no_dflash_2_on_a_quantised_head(
    drafted: CellView, head: dict[str, str], version: str | None, level: Level
) -> None:
    assert level_of("lm_head_plain", on_vllm(with_files(drafted, head=head), version=version)) == (
        level
    )


def test_before_any_boot_a_quantised_head_is_a_warning(drafted: CellView) -> None:
    view = replace(on_vllm(with_files(drafted, head=SCALED_HEAD), version=None), boots=())

    assert level_of("lm_head_plain", view) == "warning"


def test_other_drafters_and_other_engines_take_any_head(drafted: CellView) -> None:
    quantised = with_files(drafted, head=SCALED_HEAD)
    older = {**DRAFTER, "architectures": ["DFlashDraftModel"]}

    assert level_of("lm_head_plain", quantised) == "ok"  # the bundled engine
    other = on_vllm(with_files(drafted, drafter=older, head=SCALED_HEAD), version="0.27.1")
    assert level_of("lm_head_plain", other) == "ok"


# --- what a run keeps of a model's files ----------------------------------------------------------


def test_weights_are_told_by_part_of_the_model_over_all_shards(tmp_path: Path) -> None:
    model_files.safetensors(
        tmp_path / "model-00001-of-00002.safetensors",
        {
            "model.language_model.embed_tokens.weight": ("BF16", 400),
            "model.language_model.layers.0.mlp.up_proj.weight": ("F8_E4M3", 70),
            "model.language_model.layers.0.mlp.experts.3.up_proj.weight": ("F8_E4M3", 50),
            "model.visual.blocks.0.weight": ("BF16", 30),
        },
    )
    model_files.safetensors(
        tmp_path / "model-00002-of-00002.safetensors",
        {
            "lm_head.weight": ("U8", 200),
            "lm_head.weight_scale": ("F8_E4M3", 20),
            "mtp.layers.0.weight": ("BF16", 10),
        },
    )

    weights = files.identity(Model(name="m", path=str(tmp_path)))["weights"]

    assert weights["bytes"] == {
        "embedding": 400,
        "layers": 70,
        "experts": 50,
        "vision": 30,
        "head": 220,
        "mtp": 10,
    }
    assert weights["head"] == {"lm_head.weight": "U8", "lm_head.weight_scale": "F8_E4M3"}


def test_a_file_that_is_no_safetensors_file_ends_the_plan_and_not_the_boot(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((5).to_bytes(8, "little") + b"<html>")

    with pytest.raises(ConfigError, match=r"model\.safetensors has no safetensors header"):
        files.identity(Model(name="m", path=str(tmp_path)))


def test_a_model_without_files_here_has_no_weights() -> None:
    assert files.identity(Model(name="q", path="org/q"))["weights"] is None
