"""Reading a folder of safetensors: shards, FP8 blocks, and what a broken download is told."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engines.dflash2.checkpoint import dequantize_fp8, open_checkpoint
from engines.dflash2.config import HybridTargetConfig, ModelError, load_target_config
from engines.dflash2.qwen3_5 import Qwen3_5ForCausalLM
from engines.dflash2.weights import load_target

from .decoding import run_pass

Json = dict[str, Any]
Write = Callable[[Path, Json, dict[str, Tensor]], Path]
CHECKOUT = Path(__file__).parents[2]
PUBLISHED = Path(__file__).parent / "golden" / "target"


def write_shards(folder: Path, config: Json, shards: dict[str, dict[str, Tensor]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def published_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A text model's tensors as the model that also sees calls them."""
    return {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in tensors.items()
    }


def fp8_and_scale(weight: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Codes, and bfloat16 scales that bring the largest of each block to e4m3's 448."""
    rows, columns = (-(-size // block) for size in weight.shape)
    codes = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(rows, columns, dtype=torch.bfloat16)
    for r in range(rows):
        for c in range(columns):
            place = slice(r * block, (r + 1) * block), slice(c * block, (c + 1) * block)
            scales[r, c] = weight[place].abs().max() / 448
            codes[place] = (weight[place] / scales[r, c].float()).to(torch.float8_e4m3fn)
    return codes, scales


def test_the_published_target_has_its_published_inventory() -> None:
    config = load_target_config(PUBLISHED)
    assert isinstance(config, HybridTargetConfig)
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(config)
    sizes = {name: tensor.numel() for name, tensor in model.state_dict().items()}
    assert len(sizes) == 851
    assert sum(sizes.values()) == 26_895_998_464
    by_layer = [
        sum(size for name, size in sizes.items() if name.startswith(f"model.layers.{layer}."))
        for layer in range(4)
    ]
    assert by_layer == [383_273_184, 383_273_184, 383_273_184, 372_255_232]
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes["model.layers.0.linear_attn.conv1d.weight"] == (10240, 1, 4)
    assert shapes["model.layers.3.self_attn.q_proj.weight"] == (12288, 5120)
    assert "lm_head.weight" in shapes


def test_a_block_of_an_fp8_weight_is_multiplied_by_its_scale() -> None:
    weight = torch.tensor([[1.0, 2.0, 0.5], [4.0, 8.0, -0.5], [16.0, 1.0, 2.0]])
    scale = torch.tensor([[10.0, 100.0], [0.5, 2.0]])  # blocks of two, the last ones cut
    wide = dequantize_fp8(weight.to(torch.float8_e4m3fn), scale, (2, 2), torch.float32)
    assert wide.tolist() == [[10, 20, 50], [40, 80, -50], [8, 0.5, 4]]


def test_scales_that_do_not_cover_the_weight_are_refused() -> None:
    weight = torch.zeros(3, 3).to(torch.float8_e4m3fn)
    with pytest.raises(ModelError, match=r"shape \[3, 3\] in blocks of \[2, 2\] needs \[2, 2\]"):
        dequantize_fp8(weight, torch.zeros(1, 2), (2, 2), torch.float32)


def test_a_sharded_fp8_checkpoint_with_vision_and_mtp_computes_what_its_numbers_say(
    tmp_path: Path, make_hybrid: Any, hybrid_json: Json
) -> None:
    model = make_hybrid(seed=31).float()
    config = {
        **hybrid_json,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [20, 20],  # divides no dimension: the last blocks are cut
        },
    }
    stored: dict[str, Tensor] = {}
    for name, tensor in published_names(model.state_dict()).items():
        if name.endswith("_proj.weight"):
            codes, scales = fp8_and_scale(tensor, 20)
            stored |= {name: codes, name + "_scale_inv": scales}
        else:
            stored[name] = tensor.bfloat16()
    others = {
        "model.visual.patch_embed.proj.weight": torch.zeros(3, 3),
        "model.visual.pos_embed.weight": torch.zeros(3),
        "mtp.fc.weight": torch.zeros(48, 96),
    }
    names = sorted(stored)
    shards = {
        "model-00001-of-00002.safetensors": {n: stored[n] for n in names[::2]},
        "model-00002-of-00002.safetensors": {n: stored[n] for n in names[1::2]} | others,
    }
    folder = write_shards(tmp_path, config, shards)
    said: list[str] = []
    loaded = load_target(folder, torch.float32, say=said.append)
    assert said == [
        "skipping 2 tensors of the vision tower (text only)",
        "skipping 1 tensors of the MTP head",
    ]
    for name, tensor in published_names(loaded.state_dict()).items():
        if name + "_scale_inv" in stored:
            rows, columns = tensor.shape
            scales = stored[name + "_scale_inv"].float()
            wide = scales.repeat_interleave(20, 0)[:rows].repeat_interleave(20, 1)[:, :columns]
            assert torch.equal(tensor, stored[name].float() * wide)
        else:
            assert torch.equal(tensor, stored[name].float())


def test_decays_stay_float32_where_the_rest_is_computed_in_bfloat16(
    tmp_path: Path, make_hybrid: Any, hybrid_json: Json, write_checkpoint: Write
) -> None:
    tensors = published_names(make_hybrid(seed=32).float().state_dict())
    loaded = load_target(write_checkpoint(tmp_path, hybrid_json, tensors), torch.bfloat16)
    dtypes = {name: tensor.dtype for name, tensor in loaded.state_dict().items()}
    wide = {name for name, dtype in dtypes.items() if dtype == torch.float32}
    assert wide == {name for name in dtypes if name.endswith(("A_log", "dt_bias"))}
    assert set(dtypes.values()) == {torch.float32, torch.bfloat16}
    ids = torch.arange(70).unsqueeze(0)
    cache = loaded.new_cache(1, 80)
    assert loaded.logits(run_pass(loaded, ids, cache).hidden).dtype == torch.bfloat16
    assert run_pass(loaded, ids[:, :8], cache).hidden.isfinite().all()


def test_an_fp8_weight_without_scales_is_refused(
    tmp_path: Path, make_hybrid: Any, hybrid_json: Json, write_checkpoint: Write
) -> None:
    tensors = published_names(make_hybrid(seed=33).float().state_dict())
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    folder = write_checkpoint(tmp_path, hybrid_json, tensors)
    with pytest.raises(ModelError, match=r"up_proj\.weight is FP8, but its _scale_inv or .* miss"):
        load_target(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    shards = {
        f"{number}.safetensors": {"a": torch.zeros(2), f"b{number}": torch.zeros(2)}
        for number in (1, 2)
    }
    folder = write_shards(tmp_path, {}, shards)
    with pytest.raises(ModelError, match=r"a is in 1\.safetensors, too"):
        open_checkpoint(folder)


@pytest.mark.parametrize("index", ["[]", "{", '{"weight_map": {"a": 1}}'])
def test_an_index_that_says_nothing_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"weight_map.*fetch it again"):
        open_checkpoint(tmp_path)


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from engines.dflash2.weights import load_target

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.nn.Linear(10, 10)(torch.zeros(10))
before = peak()
model = load_target(Path(sys.argv[1]), torch.float32)
print(sum(p.numel() * 4 for p in model.parameters()), peak() - before)
"""


@pytest.mark.slow
def test_loading_needs_the_memory_of_the_model_and_of_one_tensor(
    tmp_path: Path, target_json: Json, make_target: Any, write_checkpoint: Write
) -> None:
    shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8}
    tensors = {n: t.bfloat16() for n, t in make_target(seed=34, **shape).state_dict().items()}
    kinds = ["full_attention"] * 8
    write_checkpoint(tmp_path, {**target_json, **shape, "layer_types": kinds}, tensors)
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    model_bytes, peak_bytes = (int(word) for word in measured.stdout.split())
    file_bytes = (tmp_path / "model.safetensors").stat().st_size
    assert model_bytes > 400_000_000
    # Were the file's pages kept, or a second copy made, at least the file would come on top.
    assert peak_bytes < model_bytes + file_bytes / 2
