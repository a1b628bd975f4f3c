"""Every matrix that comes with the project can be planned, and the pre-flight lets it go: on a
machine that has the models and engines that it names.
"""

import shutil
from pathlib import Path

import pytest

from harness.adapters import ADAPTERS
from harness.config import load_matrix
from harness.plan import make_plan
from harness.preflight import Preflight, preflight
from harness.price import num_starts, starts_s
from harness.records import Matrix
from harness.run import before, files

from . import model_files
from .model_files import QUANTISED_HEAD

CHECKOUT = Path(__file__).parents[2]
MATRICES = sorted(path.stem for path in (CHECKOUT / "configs" / "matrices").glob("*.yaml"))

# of the 27B model of the published comparison and its drafter, as their config.json say
TARGET = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 5120,
        "vocab_size": 248320,
        "num_hidden_layers": 64,
        "max_position_embeddings": 262144,
        "mtp_num_hidden_layers": 1,
    },
}
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 5120,
    "vocab_size": 248320,
    "num_target_layers": 64,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
    },
}
DSPARK = {"architectures": ["Qwen3DSparkModel"], "hidden_size": 5120, "vocab_size": 248320}
GGUF_TARGET = {
    "general.architecture": "qwen35",
    "qwen35.embedding_length": 5120,
    "qwen35.block_count": 64,
    "qwen35.context_length": 262144,
    "qwen35.nextn_predict_layers": 1,
}
GGUF_DRAFTER = {
    "general.architecture": "dflash",
    "dflash.embedding_length": 5120,
    "dflash.block_size": 8,
    "dflash.selector_rank": 256,
    "dflash.target_layers": [6, 20, 34, 48, 62],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout on a GPU box: vLLM installed, models in the hub's cache and as GGUF files."""
    for part in ("configs", "prompts"):
        shutil.copytree(CHECKOUT / part, tmp_path / part)
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "demo").symlink_to(CHECKOUT / "engines" / "demo")
    vllm_installed(tmp_path, "0.32.0")
    hub = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    model_files.in_hub_cache(hub, "Qwen/Qwen3.8-27B-FP8", TARGET)
    model_files.in_hub_cache(hub, "OWNER/Qwen3.8-27B-NVFP4", TARGET, QUANTISED_HEAD)
    model_files.in_hub_cache(hub, "Doopeworld/Qwen3.8-27B-DSpark-vLLM", DSPARK, head={})
    model_files.in_hub_cache(hub, "incoai/Qwen3.8-27B-DFlash2", DRAFTER, head={})
    ggufs = tmp_path / ".engines" / "models"
    ggufs.mkdir(parents=True)
    model_files.gguf(ggufs / "Qwen3.8-27B-Q4_K_M.gguf", GGUF_TARGET)
    model_files.gguf(ggufs / "Qwen3.8-27B-DFlash2.gguf", GGUF_DRAFTER)
    for name in ("demo-dense.f32", "SmolLM2-135M-Instruct.Q4_1"):
        model_files.gguf(ggufs / f"{name}.gguf", {"general.architecture": "qwen3"})
    demo_drafter = {"general.architecture": "dflash", "dflash.selector_rank": 64}
    model_files.gguf(ggufs / "demo-dense-dflash2.f32.gguf", demo_drafter)
    return tmp_path


def vllm_installed(project: Path, version: str) -> None:
    packages = project / ".engines" / "vllm" / "lib" / "python3.12" / "site-packages"
    shutil.rmtree(packages, ignore_errors=True)
    (packages / f"vllm-{version}.dist-info").mkdir(parents=True)


def loaded(project: Path, name: str) -> Matrix:
    return load_matrix(project / "configs" / "matrices" / f"{name}.yaml")


def asked(project: Path, matrix: Matrix) -> Preflight:
    models = {name: files.identity(model) for name, model in files.models_of(matrix).items()}
    engines = {variant.engine.name: variant.engine for variant in matrix.variants}
    versions = {name: before.version_of(engine, project) for name, engine in engines.items()}
    return preflight(matrix, make_plan(matrix), models, versions=versions)


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_is_planned_and_nothing_in_it_refused(project: Path, name: str) -> None:
    matrix = loaded(project, name)

    assert make_plan(matrix).cells
    assert [(each.check, each.message) for each in asked(project, matrix).refused] == []


@pytest.mark.parametrize(
    ("name", "starts", "booting_s"),
    [
        ("study-vllm-fp8", 14, 14 * 420.0),
        ("study-vllm-fp8-long", 16, 16 * 420.0),
        ("study-llamacpp-q4", 8, 8 * 60.0),
    ],
)
def test_the_hours_of_booting_are_priced_before_any_run(
    project: Path, name: str, starts: int, booting_s: float
) -> None:
    matrix = loaded(project, name)
    blocks = make_plan(matrix).blocks

    assert num_starts(blocks) == starts
    assert starts_s(matrix, blocks, None) == booting_s


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        (
            "study-vllm-fp8",
            "--max-model-len 131072 --gpu-memory-utilization 0.80 --max-num-batched-tokens 16384 "
            '--enable-prefix-caching --limit-mm-per-prompt {"image": 0, "video": 0}',
        ),
        ("study-vllm-fp8-long", "--max-model-len 262144 --gpu-memory-utilization 0.85"),
    ],
)
def test_every_variant_has_the_flags_that_were_published(
    project: Path, name: str, flags: str
) -> None:
    matrix = loaded(project, name)
    for variant in matrix.variants:
        words = ADAPTERS["vllm"].command(variant, {**matrix.held_constant, **variant.flags}, 8000)
        assert " ".join(words).endswith(flags)


def test_fp8_is_the_one_checkpoint_that_runs_dflash_2_on_the_vllm_of_the_study(
    project: Path,
) -> None:
    """0.27.1 with the pull request laid over it refuses a quantised head, and 0.32 takes it."""
    overlay = project / "pr"
    overlay.mkdir()
    (overlay / "speculative.py").write_text("")
    file = project / "configs" / "matrices" / "study-vllm-fp8.yaml"
    engine = "{use: configs/engines/vllm.yaml, ready_timeout_s: 1800, expected_boot_s: 420}"
    assert engine in file.read_text()
    container = (
        "{use: configs/engines/vllm-container.yaml, overlay: {pr: /vllm}, image: "
        f'"vllm/vllm-openai:v0.27.1@sha256:{"1" * 64}"}}'
    )

    def able() -> dict[str, bool | None]:
        """Of DFlash 2, by target."""
        rows = asked(project, loaded(project, "study-vllm-fp8")).rows
        mine = [row for row in rows if row.name.startswith("DFlash 2")]
        return {row.target: row.answers["vllm"].able for row in mine}

    assert able() == {"study-fp8": True, "study-nvfp4": True}
    file.write_text(file.read_text().replace(engine, container))
    assert able() == {"study-fp8": True, "study-nvfp4": False}


def test_a_stock_vllm_of_the_study_is_refused_before_it_drafts_as_dflash_1(project: Path) -> None:
    vllm_installed(project, "0.27.1")

    (refused,) = asked(project, loaded(project, "study-vllm-fp8")).refused

    assert refused.variants == ("FP8 + DFlash 2",)
    assert "docs/howto/gpu-study.md" in refused.message
