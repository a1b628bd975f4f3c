"""A pair as GGUF holds the numbers of its checkpoint, and the words that llama.cpp reads."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from engines.dflash2 import __main__ as engine
from engines.dflash2.checkpoint import open_checkpoint
from engines.dflash2.config import ModelError

gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
from engines.gguf.__main__ import main  # noqa: E402  after the package that it needs
from engines.gguf.export import export_drafter, export_target  # noqa: E402
from engines.gguf.names import gguf_name  # noqa: E402

DEMO = Path(__file__).parents[2] / "engines" / "demo" / "dense"
TARGET, DRAFTER = DEMO / "target", DEMO / "drafter"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The demo pair's two files, read back by llama.cpp's own package."""
    folder = tmp_path_factory.mktemp("gguf")
    target, drafter = folder / "t.gguf", folder / "d.gguf"
    assert main([str(TARGET), str(target), "--drafter", str(DRAFTER), str(drafter)]) == 0
    return {"target": gguf.GGUFReader(target), "drafter": gguf.GGUFReader(drafter)}


def values(reader: Any, *keys: str) -> list[Any]:
    return [reader.fields[key].contents() for key in keys]


def edited(source: Path, folder: Path, file: str, **changes: Any) -> Path:
    """A copy of a checkpoint in which one JSON file says something else."""
    copy = shutil.copytree(source, folder / source.name)
    path = copy / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return copy


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "folder"), [("target", TARGET), ("drafter", DRAFTER)])
def test_every_number_is_the_checkpoints_own(files, name, folder):
    checkpoint = open_checkpoint(folder)
    written = {tensor.name: tensor.data for tensor in files[name].tensors}
    assert len(written) == len(checkpoint.tensors)
    for published, tensor in checkpoint.read(checkpoint.tensors, torch.float32):
        data = written[gguf_name(published)]
        assert data.shape == tuple(tensor.shape)
        assert (data == tensor.numpy()).all(), published


@pytest.mark.parametrize(
    ("published", "written"),
    [
        ("model.layers.9.self_attn.o_proj.weight", "blk.9.attn_output.weight"),
        ("layers.1.mlp_conv.base_kernel", "blk.1.ffn_conv_base"),
        ("hidden_norm.weight", "enc.output_norm.weight"),
        ("lm_head.weight", "output.weight"),
    ],
)
def test_names_are_llama_cpps(published, written):
    assert gguf_name(published) == written


@pytest.mark.parametrize("unknown", ["model.layers.0.linear_attn.A_log", "visual.patch.weight"])
def test_a_tensor_that_is_not_known_is_named(unknown):
    with pytest.raises(ModelError, match=unknown):
        gguf_name(unknown)


# --- keys -----------------------------------------------------------------------------------------


def test_the_target_is_described_as_its_config_says(files):
    keys = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count_kv")
    assert values(files["target"], *(f"qwen3.{key}" for key in keys)) == [10, 320, 896, 2]
    assert values(files["target"], "qwen3.attention.key_length", "qwen3.context_length") == [
        64,
        4096,
    ]


def test_the_drafter_is_described_as_its_config_says(files):
    """Taps 1, 4 and 7 are read at the entrance of layers 2, 5 and 8."""
    assert values(files["drafter"], "dflash.target_layers", "dflash.block_size") == [[2, 5, 8], 8]
    keys = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    assert values(files["drafter"], *(f"dflash.{key}" for key in keys)) == [2, 16, 64, 16]
    window = ("attention.sliding_window", "attention.sliding_window_pattern", "attention.causal")
    assert values(files["drafter"], *(f"dflash.{key}" for key in window)) == [
        1024,
        [True, True],
        False,
    ]
    assert values(files["drafter"], "tokenizer.ggml.mask_token_id") == [3]


@pytest.mark.parametrize("name", ["target", "drafter"])
def test_both_files_hold_the_targets_tokenizer(files, name):
    library = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
    tokens, kinds = values(files[name], "tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
    assert tokens == [library.id_to_token(index) for index in range(2048)]
    assert kinds == [3] * 4 + [1] * 2044  # four special tokens
    assert values(files[name], "tokenizer.ggml.pre") == ["gpt-2"]
    stops = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    assert values(files[name], *stops) == [2, 0]
    (template,) = values(files[name], "tokenizer.chat_template")
    assert template == json.loads((TARGET / "tokenizer_config.json").read_text())["chat_template"]


# --- refusals -------------------------------------------------------------------------------------


def test_another_way_to_cut_words_is_refused(tmp_path):
    """Under GPT-2's name it would give other tokens, and llama.cpp would not say so."""
    cuts = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    copy = edited(TARGET, tmp_path, "tokenizer.json", pre_tokenizer=cuts)
    with pytest.raises(ModelError, match=r"cuts as GPT-2's does.*convert_hf_to_gguf"):
        export_target(copy, tmp_path / "t.gguf")
    assert not (tmp_path / "t.gguf").exists()


def test_more_tokens_than_the_model_has_rows_are_refused(tmp_path):
    copy = edited(TARGET, tmp_path, "config.json", vocab_size=2000)
    with pytest.raises(ModelError, match=r"has token 2047, but the model's vocab_size is 2000"):
        export_target(copy, tmp_path / "t.gguf")


def test_another_architecture_is_refused(tmp_path):
    changes = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    copy = edited(TARGET, tmp_path, "config.json", **changes)
    with pytest.raises(ModelError, match="is a plain llama checkpoint"):
        export_target(copy, tmp_path / "t.gguf")


def test_a_drafter_of_another_target_is_refused(tmp_path):
    copy = edited(DRAFTER, tmp_path, "config.json", num_target_layers=12)
    with pytest.raises(ModelError, match="num_target_layers is 12 in the drafter and 10"):
        export_drafter(copy, TARGET, tmp_path / "d.gguf")


def test_the_engines_command_line_has_it_as_a_command(tmp_path):
    out = tmp_path / "t.gguf"
    assert engine.main(["export-gguf", str(TARGET), str(out)]) == 0
    assert gguf.GGUFReader(out).fields["general.architecture"].contents() == "qwen3"


def test_a_mistake_ends_with_two_and_a_message(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path / "t.gguf")]) == 2
    assert capsys.readouterr().err.startswith(f"gguf: {tmp_path / 'config.json'}: no such file")
