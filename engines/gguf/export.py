"""From folders of safetensors to GGUF files in float32, every number as it was.

bfloat16 widens to float32 without loss, so three engines that compute in float32 compute with the
same weights. Knows the keys that llama.cpp (b11434) reads for its architectures `qwen3` and
`dflash`, and no inference.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from gguf import GGUFWriter

from engines.dflash2.checkpoint import open_checkpoint
from engines.dflash2.config import (
    DrafterConfig,
    ModelError,
    TargetConfig,
    TransformerConfig,
    check_pair,
    load_drafter_config,
    load_target_config,
)
from engines.gguf.names import gguf_name
from engines.gguf.vocabulary import read_chat_template, read_stop_ids, read_vocabulary

ALL_FLOAT32 = 0  # as general.file_type numbers it


def export_target(folder: Path, out: Path) -> None:
    config = _dense_target(folder)
    _write(folder, out, "qwen3", lambda writer: _target_keys(writer, folder, config))


def export_drafter(folder: Path, target: Path, out: Path) -> None:
    """The drafter's file holds the target's tokenizer too; embedding and head it takes from the
    target when both are loaded.
    """
    config, target_config = _plain_drafter(folder), _dense_target(target)
    check_pair(config, target_config)

    def keys(writer: GGUFWriter) -> None:
        _shared_keys(writer, config)
        _drafter_keys(writer, config)
        _tokenizer_keys(writer, target, target_config)
        writer.add_mask_token_id(config.mask_token_id)

    _write(folder, out, "dflash", keys)


# --- what can be exported -------------------------------------------------------------------------


def _dense_target(folder: Path) -> TargetConfig:
    config = load_target_config(folder)
    if config.model_type != "qwen3" or config.fp8_block is not None:
        stored = "FP8" if config.fp8_block else "plain"
        raise ModelError(
            f"{folder}: is a {stored} {config.model_type} checkpoint; this export is for qwen3 in "
            "BF16, F16 or F32; use llama.cpp's own convert_hf_to_gguf.py for others"
        )
    return config


def _plain_drafter(folder: Path) -> DrafterConfig:
    config = load_drafter_config(folder)
    if config.is_quantized:
        raise ModelError(f"{folder}: is a Q8 conversion; name the drafter that it was made from")
    scales = (config.input_embedding_scale, config.output_multiplier)
    if scales != (1.0, 1.0) or config.final_logit_softcapping is not None:
        raise ModelError(
            f"{folder}: scales its embedding or its logits, which this export does not write; use "
            "llama.cpp's own convert_hf_to_gguf.py"
        )
    return config


# --- the keys -------------------------------------------------------------------------------------


def _target_keys(writer: GGUFWriter, folder: Path, config: TargetConfig) -> None:
    _shared_keys(writer, config)
    _tokenizer_keys(writer, folder, config)


def _shared_keys(writer: GGUFWriter, config: TransformerConfig) -> None:
    writer.add_file_type(ALL_FLOAT32)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _drafter_keys(writer: GGUFWriter, config: DrafterConfig) -> None:
    writer.add_causal_attention(False)
    writer.add_sliding_window(config.sliding_window)
    writer.add_array("dflash.attention.sliding_window_pattern", [True] * config.num_hidden_layers)
    # llama.cpp names a tap by the layer that reads it, the checkpoint by the one that wrote it
    writer.add_array("dflash.target_layers", [layer + 1 for layer in config.target_layer_ids])
    writer.add_uint32("dflash.block_size", config.block_size)
    writer.add_uint32("dflash.conv_kernel_size", config.conv_kernel_size)
    writer.add_uint32("dflash.conv_group_size", config.conv_group_size)
    writer.add_uint32("dflash.selector_rank", config.selector_rank)
    writer.add_uint32("dflash.selector_top_k", config.selector_top_k)


def _tokenizer_keys(writer: GGUFWriter, folder: Path, config: TargetConfig) -> None:
    vocabulary = read_vocabulary(folder, config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_add_bos_token(False)
    _stop_keys(writer, folder)
    template = read_chat_template(folder)
    if template is not None:
        writer.add_chat_template(template)


def _stop_keys(writer: GGUFWriter, folder: Path) -> None:
    """A file holds an end of text and an end of turn; llama.cpp stops at either."""
    stop_ids = read_stop_ids(folder)
    if len(stop_ids) > 2:
        raise ModelError(f"{folder}: has {len(stop_ids)} stop ids, and a GGUF file holds two")
    if stop_ids:
        writer.add_eos_token_id(stop_ids[0])
    if len(stop_ids) == 2:
        writer.add_eot_token_id(stop_ids[1])


# --- the file -------------------------------------------------------------------------------------


def _write(
    folder: Path, out: Path, architecture: str, add_keys: Callable[[GGUFWriter], None]
) -> None:
    checkpoint = open_checkpoint(folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial")
    writer = GGUFWriter(partial, architecture)
    writer.add_type("model")
    add_keys(writer)
    for name, tensor in checkpoint.read(checkpoint.tensors, torch.float32):
        writer.add_tensor(gguf_name(name), tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(out)  # nobody finds half a file
