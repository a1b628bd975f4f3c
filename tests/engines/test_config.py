"""What a config.json must say, and how one that cannot be run is refused."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from engines.dflash2.config import (
    DrafterConfig,
    HybridTargetConfig,
    ModelError,
    TargetConfig,
    check_pair,
    load_drafter_config,
    load_target_config,
)

PUBLISHED = Path(__file__).parent / "golden" / "drafter_config.json"
DRAFT_KEYS = ("block_size", "mask_token_id", "conv_kernel_size", "selector_rank")

Json = dict[str, Any]


def write(folder: Path, values: object) -> Path:
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_the_published_config_is_the_published_file() -> None:
    assert hashlib.sha256(PUBLISHED.read_bytes()).hexdigest() == (
        "873e3556509b0da06e29654ba00d4944888d4b5e8a33afde25f7eb27d321e980"
    )


def test_the_published_config_is_read_whole(tmp_path: Path) -> None:
    config = load_drafter_config(write(tmp_path, json.loads(PUBLISHED.read_text())))
    assert config == DrafterConfig(
        vocab_size=248320,
        hidden_size=5120,
        intermediate_size=17408,
        num_hidden_layers=5,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=262144,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        dtype="bfloat16",
        num_target_layers=64,
        target_layer_ids=(5, 19, 33, 47, 61),
        block_size=8,
        mask_token_id=248070,
        sliding_window=2048,
        conv_kernel_size=2,
        conv_group_size=16,
        selector_rank=256,
        selector_top_k=16,
        input_embedding_scale=1.0,
        output_multiplier=1.0,
        final_logit_softcapping=None,
    )
    assert config.num_proposals == 7


def test_a_target_config_is_read_whole(
    tmp_path: Path, target_json: Json, tiny_target_config: TargetConfig
) -> None:
    config = load_target_config(write(tmp_path, target_json))
    assert config == dataclasses.replace(tiny_target_config, dtype="float32")


def test_a_hybrid_config_is_read_from_the_text_part(
    tmp_path: Path, hybrid_json: Json, tiny_hybrid_config: HybridTargetConfig
) -> None:
    config = load_target_config(write(tmp_path, hybrid_json))
    assert config == dataclasses.replace(tiny_hybrid_config, dtype="float32")
    text_only = {**hybrid_json["text_config"], "architectures": ["Qwen3_5ForCausalLM"]}
    assert load_target_config(write(tmp_path, text_only)) == config


def test_kinds_of_layers_that_are_not_listed_alternate_by_the_interval(
    tmp_path: Path, hybrid_json: Json
) -> None:
    text = hybrid_json["text_config"]
    del text["layer_types"]
    text |= {"num_hidden_layers": 6, "full_attention_interval": 3}
    config = load_target_config(write(tmp_path, hybrid_json))
    assert isinstance(config, HybridTargetConfig)
    linear, full = "linear_attention", "full_attention"
    assert config.layer_types == (linear, linear, full, linear, linear, full)
    del text["full_attention_interval"]
    fourth = load_target_config(write(tmp_path, hybrid_json))
    assert isinstance(fourth, HybridTargetConfig)
    assert fourth.layer_types == (linear, linear, linear, full, linear, linear)


def test_the_blocks_of_an_fp8_checkpoint_are_read(tmp_path: Path, hybrid_json: Json) -> None:
    hybrid_json["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    }
    assert load_target_config(write(tmp_path, hybrid_json)).fp8_block == (128, 128)


WRONG_HYBRIDS: dict[str, tuple[str, object, str]] = {
    "an unknown kind of layer": ("layer_types", ["mamba"] * 4, "4 of 'linear_attention' and"),
    "too few kinds": ("layer_types", ["full_attention"], "4 of 'linear_attention' and"),
    "heads that do not divide": ("linear_num_value_heads", 5, "linear_num_key_heads 2 must divide"),
    "a convolution of one tap": ("linear_conv_kernel_dim", 1, "whole number of at least 2"),
    "no gate": ("attn_output_gate", False, "attn_output_gate is False: .* only True"),
    "narrow states": ("mamba_ssm_dtype", "bfloat16", "mamba_ssm_dtype is 'bfloat16': .* only"),
    "an odd number of turned channels": (
        "rope_parameters",
        {"rope_theta": 1e4, "partial_rotary_factor": 0.2},
        "head_dim is 16: 3 of its channels would turn in pairs",
    ),
    "another model": ("model_type", "qwen3", "model_type is 'qwen3'"),
}


@pytest.mark.parametrize("case", WRONG_HYBRIDS)
def test_a_hybrid_this_engine_cannot_run_is_refused(
    tmp_path: Path, hybrid_json: Json, case: str
) -> None:
    key, value, message = WRONG_HYBRIDS[case]
    hybrid_json["text_config"][key] = value
    with pytest.raises(ModelError, match=message):
        load_target_config(write(tmp_path, hybrid_json))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quant_method", "gptq", "quant_method is 'gptq': .* only 'fp8'"),
        ("fmt", "e5m2", "fmt is 'e5m2': this engine reads e4m3 only"),
        ("weight_block_size", None, "weight_block_size is None: two whole numbers"),
        ("weight_block_size", [128], "weight_block_size is .*: two whole numbers"),
    ],
)
def test_another_quantisation_of_a_target_is_refused(
    tmp_path: Path, hybrid_json: Json, key: str, value: object, message: str
) -> None:
    said = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    hybrid_json["quantization_config"] = {**said, key: value}
    with pytest.raises(ModelError, match=message):
        load_target_config(write(tmp_path, hybrid_json))


def test_transformers_4_spellings_are_read_too(
    tmp_path: Path, target_json: Json, tiny_target_config: TargetConfig
) -> None:
    del target_json["rope_parameters"], target_json["dtype"], target_json["layer_types"]
    target_json |= {"rope_theta": 10_000, "rope_scaling": None, "torch_dtype": "bfloat16"}
    config = load_target_config(write(tmp_path, target_json))
    assert config == dataclasses.replace(tiny_target_config, dtype="bfloat16")


def test_draft_values_are_found_in_dflash_config_then_at_the_top_level(
    tmp_path: Path, drafter_json: Json
) -> None:
    for key in DRAFT_KEYS:
        drafter_json[key] = drafter_json["dflash_config"][key] + 1  # ignored: the other wins
    drafter_json["selector_top_k"] = drafter_json["dflash_config"].pop("selector_top_k") - 1
    config = load_drafter_config(write(tmp_path, drafter_json))
    assert (config.block_size, config.mask_token_id) == (8, 95)
    assert (config.conv_kernel_size, config.selector_rank) == (2, 8)
    assert config.selector_top_k == 15


@pytest.mark.parametrize("place", ["dflash_config", "top level"])
def test_scales_and_the_cap_are_read_from_either_place(
    tmp_path: Path, drafter_json: Json, place: str
) -> None:
    values = drafter_json if place == "top level" else drafter_json["dflash_config"]
    values |= {
        "input_embedding_scale": 2,
        "output_multiplier": 0.5,
        "final_logit_softcapping": 30.0,
    }
    config = load_drafter_config(write(tmp_path, drafter_json))
    assert (config.input_embedding_scale, config.output_multiplier) == (2.0, 0.5)
    assert config.final_logit_softcapping == 30.0


def test_a_block_size_that_stands_nowhere_is_sixteen(tmp_path: Path, drafter_json: Json) -> None:
    del drafter_json["dflash_config"]["block_size"]
    assert load_drafter_config(write(tmp_path, drafter_json)).block_size == 16


def test_taps_that_stand_nowhere_are_spread_as_the_reference_spreads_them(
    tmp_path: Path, drafter_json: Json
) -> None:
    del drafter_json["dflash_config"]["target_layer_ids"]
    layers = {"num_hidden_layers": 5, "layer_types": ["sliding_attention"] * 5}
    drafter_json |= {"num_target_layers": 64, **layers}
    config = load_drafter_config(write(tmp_path, drafter_json))
    assert config.target_layer_ids == (1, 16, 31, 46, 61)


def test_the_old_name_of_noncausal_is_understood(tmp_path: Path, drafter_json: Json) -> None:
    del drafter_json["is_causal"]
    folder = write(tmp_path, drafter_json)
    with pytest.raises(ModelError):  # said by nobody, a windowed layer counts as causal
        load_drafter_config(folder)
    drafter_json["dflash_config"]["causal"] = False
    assert load_drafter_config(write(tmp_path, drafter_json)).block_size == 8


MISSING = object()

WRONG_DRAFTERS: dict[str, tuple[str, object, str]] = {
    "another architecture": (
        "architectures",
        ["DFlashDraftModel"],
        r"architectures is \['DFlashDraftModel'\]: this engine runs only \['DFlash2DraftModel'\]",
    ),
    "no window flag": (
        "use_sliding_window",
        MISSING,
        "use_sliding_window is missing: the layers are 'sliding_attention'",
    ),
    "window flag off": ("use_sliding_window", False, "use_sliding_window is False"),
    "no window": ("sliding_window", None, "sliding_window is None: a whole number"),
    "a layer without window": (
        "layer_types",
        ["sliding_attention", "full_attention"],
        "layer_types is .*'full_attention'.* one 'sliding_attention' for each layer",
    ),
    "causal blocks": ("is_causal", True, "is_causal is True: this engine runs noncausal"),
    "causal by an old default": ("is_causal", MISSING, "is_causal is missing"),
    "an anchor that proposes": ("sample_from_anchor", True, "sample_from_anchor is True"),
    "scaled values": ("attention_value_scale", 0.5, "attention_value_scale is 0.5"),
    "quantised otherwise": ("quantization", {"bits": 8}, "quantization is .* drafters have"),
    "quantised as a target": (
        "quantization_config",
        {"bits": 8},
        "quantization_config is .* no such",
    ),
    "biases": ("attention_bias", True, "attention_bias is True"),
    "another activation": ("hidden_act", "gelu", "hidden_act is 'gelu'"),
    "heads that do not divide": (
        "num_key_value_heads",
        3,
        "num_key_value_heads is 3: it must divide num_attention_heads 4",
    ),
    "no head size": ("head_dim", MISSING, "head_dim is missing"),
    "an odd head": ("head_dim", 15, "head_dim is 15: rotary"),
    "text for a number": ("hidden_size", "48", "hidden_size is '48': a whole number"),
    "true for a number": ("vocab_size", True, "vocab_size is True: a whole number"),
    "stretched positions": (
        "rope_parameters",
        {"rope_type": "yarn", "rope_theta": 1e4},
        "rope_parameters is .*yarn.* only the default rotary",
    ),
    "partly rotated heads": (
        "rope_parameters",
        {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
        "rope_parameters is .* whole heads only",
    ),
    "no base of the angles": ("rope_parameters", {}, "rope_theta is missing"),
    "no draft section": ("dflash_config", MISSING, "dflash_config is missing: an object"),
}

WRONG_DRAFT_VALUES: dict[str, tuple[str, object, str]] = {
    "taps that fall": ("target_layer_ids", [2, 0], r"target_layer_ids is \[2, 0\]: .* strictly"),
    "taps twice": ("target_layer_ids", [1, 1], "strictly from 0 to 3"),
    "taps beyond the target": ("target_layer_ids", [0, 4], "num_target_layers 4"),
    "taps before the target": ("target_layer_ids", [-1, 2], "strictly from 0"),
    "no taps": ("target_layer_ids", [], "a list of layer numbers"),
    "groups that do not divide": (
        "conv_group_size",
        20,
        "conv_group_size is 20: it must divide hidden_size 48",
    ),
    "a mask beyond the vocabulary": ("mask_token_id", 96, "mask_token_id is 96: at most 95"),
    "a mask before the vocabulary": ("mask_token_id", -1, "mask_token_id is -1"),
    "more candidates than tokens": ("selector_top_k", 97, "selector_top_k is 97: at most 96"),
    "no taps in the convolution": ("conv_kernel_size", 0, "conv_kernel_size is 0"),
    "a block of the anchor alone": ("block_size", 1, "block_size is 1"),
    "a huge block": ("block_size", 65, "block_size is 65: .* at most 64"),
    "no mask": ("mask_token_id", MISSING, "mask_token_id is missing"),
    "a cap in words": ("final_logit_softcapping", "30", "final_logit_softcapping is '30'"),
}


def changed(values: Json, key: str, value: object) -> Json:
    rest = {k: v for k, v in values.items() if k != key}
    return rest if value is MISSING else {**rest, key: value}


@pytest.mark.parametrize("case", WRONG_DRAFTERS)
def test_a_drafter_this_engine_cannot_run_is_refused(
    tmp_path: Path, drafter_json: Json, case: str
) -> None:
    key, value, message = WRONG_DRAFTERS[case]
    with pytest.raises(ModelError, match=f"config.json: {message}"):
        load_drafter_config(write(tmp_path, changed(drafter_json, key, value)))


@pytest.mark.parametrize("case", WRONG_DRAFT_VALUES)
def test_a_draft_value_that_makes_no_sense_is_refused(
    tmp_path: Path, drafter_json: Json, case: str
) -> None:
    key, value, message = WRONG_DRAFT_VALUES[case]
    drafter_json["dflash_config"] = changed(drafter_json["dflash_config"], key, value)
    with pytest.raises(ModelError, match=message):
        load_drafter_config(write(tmp_path, drafter_json))


def test_a_side_file_with_another_mask_embedding_is_refused(
    tmp_path: Path, drafter_json: Json
) -> None:
    (tmp_path / "mask_embedding.pt").touch()
    with pytest.raises(ModelError, match=r"mask_embedding\.pt: this engine takes the mask"):
        load_drafter_config(write(tmp_path, drafter_json))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "architectures",
            ["MistralForCausalLM"],
            "architectures is .*Mistral.*: .* targets are Qwen3ForCausalLM, Llama",
        ),
        ("architectures", MISSING, "architectures is missing"),
        ("model_type", "qwen3_moe", "model_type is 'qwen3_moe'"),
        ("use_sliding_window", True, "use_sliding_window is True"),
        ("layer_types", ["linear_attention"], "qwen3 has no layer of kind 'linear_attention'"),
        ("tie_word_embeddings", "no", "tie_word_embeddings is 'no': true or false"),
        ("quantization_config", {"quant_method": "awq"}, "quant_method is 'awq': .* only 'fp8'"),
    ],
)
def test_a_target_this_engine_cannot_run_is_refused(
    tmp_path: Path, target_json: Json, key: str, value: object, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_target_config(write(tmp_path, changed(target_json, key, value)))


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: no such file; name the folder"):
        load_target_config(tmp_path)


def test_a_torn_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": [')
    with pytest.raises(ModelError, match=r"config\.json: not JSON .* fetch the checkpoint again"):
        load_target_config(tmp_path)


def test_a_config_that_is_no_object_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds list, not a JSON object"):
        load_target_config(write(tmp_path, []))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("hidden_size", 64, "hidden_size is 64 in the drafter and 48 in the target"),
        ("vocab_size", 97, "vocab_size is 97 in the drafter and 96 in the target"),
        ("num_target_layers", 6, "num_target_layers is 6 in the drafter and 4 in the target"),
        ("max_position_embeddings", 256, "only 256 in the drafter and 512 in the target"),
    ],
)
def test_a_drafter_of_another_target_is_refused_with_both_values(
    tiny_target_config: TargetConfig,
    tiny_drafter_config: DrafterConfig,
    key: str,
    value: int,
    message: str,
) -> None:
    drafter = dataclasses.replace(tiny_drafter_config, **{key: value})  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=f"does not fit the target: .*{message}"):
        check_pair(drafter, tiny_target_config)


def test_a_pair_that_belongs_together_is_accepted(
    tiny_target_config: TargetConfig, tiny_drafter_config: DrafterConfig
) -> None:
    check_pair(tiny_drafter_config, tiny_target_config)
