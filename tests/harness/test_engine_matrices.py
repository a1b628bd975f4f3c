"""The matrices for real engines can be planned, and start each engine as it is to be started."""

import shutil
from pathlib import Path

import pytest

from harness.adapters import ADAPTERS
from harness.config import load_matrix
from harness.plan import make_plan
from harness.records import Matrix

CHECKOUT = Path(__file__).parents[2]
GGUF = ("demo-dense.f32.gguf", "demo-dense-dflash2.f32.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with the engines' models installed: files of their names."""
    for folder in ("configs", "prompts"):
        shutil.copytree(CHECKOUT / folder, tmp_path / folder)
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    for part in ("target", "drafter"):
        (tmp_path / "engines" / "demo" / "dense" / part).mkdir(parents=True)
    (tmp_path / ".engines" / "models").mkdir(parents=True)
    for name in GGUF:
        (tmp_path / ".engines" / "models" / name).touch()
    return tmp_path


def loaded(project: Path, name: str) -> Matrix:
    return load_matrix(project / "configs" / "matrices" / f"{name}.yaml")


def command(project: Path, matrix: Matrix, variant_name: str) -> str:
    """What the variant's engine is started by, folders left out."""
    variant = next(each for each in matrix.variants if each.name == variant_name)
    settings = {**matrix.held_constant, **variant.flags}
    words = ADAPTERS[variant.engine.adapter].command(variant, settings, 8000)
    return " ".join(words).replace(f"{project}/", "")


@pytest.mark.parametrize(
    ("name", "num_variants", "num_cells"),
    [
        ("llamacpp-synthetic", 2, 2),
        ("vllm-drafters", 2, 2),
        ("three-engines", 8, 8),
    ],
)
def test_a_matrix_can_be_planned(project, name, num_variants, num_cells):
    matrix = loaded(project, name)
    assert len(matrix.variants) == num_variants
    assert len(make_plan(matrix).cells) == num_cells


def test_three_engines_are_held_against_the_bundled_one(project):
    plan = make_plan(loaded(project, "three-engines"))
    variant_of = {cell.cell_id: cell.variant for cell in plan.cells}
    references = {
        cell.variant: variant_of[cell.reference_cell_id]
        for cell in plan.cells
        if cell.reference_cell_id is not None
    }
    assert references == {
        "bundled + DFlash 2": "bundled",
        "llama.cpp": "bundled",
        "llama.cpp + DFlash 2": "llama.cpp",
        "llama.cpp + n-gram": "llama.cpp",
        "llama.cpp + itself": "llama.cpp",
        "vLLM": "bundled",
        "vLLM + n-gram": "vLLM",
    }


@pytest.mark.parametrize(
    ("variant", "drafting"),
    [
        ("llama.cpp", ""),
        (
            "llama.cpp + DFlash 2",
            "--spec-type draft-dflash --model-draft .engines/models/demo-dense-dflash2.f32.gguf "
            "--spec-draft-n-max 7 ",
        ),
    ],
)
def test_llama_server_is_started_in_float32_on_one_thread(project, variant, drafting):
    assert command(project, loaded(project, "three-engines"), variant) == (
        ".engines/llamacpp/bin/llama-server --model .engines/models/demo-dense.f32.gguf "
        "--alias demo-dense-gguf --host 127.0.0.1 --port 8000 --metrics "
        f"{drafting}--ctx-size 2048 --parallel 1 --threads 1 --cache-type-k f32 "
        "--cache-type-v f32 --flash-attn off"
    )


def test_an_n_gram_drafter_keeps_the_settings_of_its_reference_and_adds_its_own(project):
    matrix = loaded(project, "three-engines")
    plain = command(project, matrix, "llama.cpp").split()
    drafting = command(project, matrix, "llama.cpp + n-gram").split()
    assert set(plain) <= set(drafting)
    assert [word for word in drafting if word not in plain] == [
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "5"),
        *("--spec-ngram-simple-size-n", "4"),
    ]


def test_the_study_asks_vllm_for_dflash_as_it_was_published(project):
    started = command(project, loaded(project, "study-vllm-fp8"), "FP8 + DFlash 2")
    assert (
        '--speculative-config {"method": "dflash", "model": "incoai/Qwen3.8-27B-DFlash2", '
        '"num_speculative_tokens": 7}'
    ) in started
    assert "--max-model-len 131072 --gpu-memory-utilization 0.80 --max-num-batched-tokens" in (
        started
    )


@pytest.mark.parametrize("variant", ["FP8", "FP8 + MTP k=3", "FP8 + DSpark k=14"])
def test_the_study_holds_every_flag_constant_but_the_drafter(project, variant):
    matrix = loaded(project, "study-vllm-fp8")
    assert all(not each.flags for each in matrix.variants)
    started = command(project, matrix, variant)
    assert started.endswith(
        "--max-num-batched-tokens 16384 --enable-prefix-caching "
        '--limit-mm-per-prompt {"image": 0, "video": 0}'
    )
