"""What a checkpoint says about itself: its config.json, read, checked and frozen.

Knows nothing of tensors. Where published engines read a key differently, the rule followed here
is the reference implementation's (dflash 0.1.0), made strict: what this engine does not do is an
error, never a key that is ignored.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TARGET_ARCHITECTURES = (
    "Qwen3ForCausalLM",
    "LlamaForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5ForConditionalGeneration",
)
DRAFTER_ARCHITECTURE = "DFlash2DraftModel"
AFFINE_Q8 = {"bits": 8, "group_size": 64, "mode": "affine"}  # the quantisation of drafters
DEFAULT_BLOCK_SIZE = 16  # the reference's default, when neither place names a block size
MAX_BLOCK_SIZE = 64  # positions kept beyond a model's last one, for rows that are always rejected


class ModelError(Exception):
    """A checkpoint this engine cannot run, or two that do not belong together."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """The numbers that every target and a DFlash 2 drafter have."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int  # not always hidden_size / num_attention_heads
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    dtype: str | None  # of the file, None where it names none; computing may use another

    @property
    def rotary_dim(self) -> int:
        """Channels of a head that carry its position."""
        return self.head_dim

    @property
    def num_attention_layers(self) -> int:
        """Layers with keys and values."""
        return self.num_hidden_layers


ModelType = Literal["qwen3", "llama", "qwen3_5"]


@dataclass(frozen=True, kw_only=True)
class TargetConfig(TransformerConfig):
    """A target; this class alone: a dense one, whose layers are all attention."""

    model_type: ModelType = "qwen3"
    tie_word_embeddings: bool
    fp8_block: tuple[int, int] | None = None  # rows, columns that share a scale; None: no FP8
    num_mtp_layers: int = 0  # of the MTP head that the checkpoint brings along; 0: it has none


LayerKind = Literal["linear_attention", "full_attention"]


@dataclass(frozen=True, kw_only=True)
class HybridTargetConfig(TargetConfig):
    """A qwen3_5 target: some layers are Gated DeltaNet ("linear attention"), some attention."""

    model_type: ModelType = "qwen3_5"
    layer_types: tuple[LayerKind, ...]
    partial_rotary_factor: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def num_attention_layers(self) -> int:
        return self.layer_types.count("full_attention")

    @property
    def linear_value_size(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def linear_channels(self) -> int:
        """Queries, keys and values together."""
        return 2 * self.linear_num_key_heads * self.linear_key_head_dim + self.linear_value_size


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(TransformerConfig):
    """A DFlash 2 drafter: noncausal block attention over a window of the target's features."""

    num_target_layers: int
    target_layer_ids: tuple[int, ...]  # zero-based target layers whose output is tapped
    block_size: int  # rows of one pass: the anchor and the masks
    mask_token_id: int
    sliding_window: int  # a key is visible iff it is less than this many positions away
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None
    is_quantized: bool = False  # its matrices are affine Q8 in groups of 64

    @property
    def num_proposals(self) -> int:
        return self.block_size - 1


def load_target_config(folder: Path | str) -> TargetConfig:
    """Read the config.json of a target."""
    file = _ConfigFile.read(Path(folder))
    match file.values.get("architectures"):
        case ["Qwen3ForCausalLM"]:
            return _dense_config(file, "qwen3")
        case ["LlamaForCausalLM"]:
            return _dense_config(_with_head_dim(file), "llama")
        case ["Qwen3_5ForCausalLM"]:
            return _hybrid_config(file)
        case ["Qwen3_5ForConditionalGeneration"]:
            return _hybrid_config(_text_part(file))
    known = ", ".join(TARGET_ARCHITECTURES)
    raise file.error("architectures", f"this engine's targets are {known}")


def load_drafter_config(folder: Path | str) -> DrafterConfig:
    """Read the config.json of a DFlash 2 drafter and check what can be checked without a target."""
    file, is_quantized = _without_q8(_ConfigFile.read(Path(folder)))
    file.expect("architectures", [DRAFTER_ARCHITECTURE])
    _refuse_what_the_engine_lacks(file)
    # A draft value is looked up in dflash_config, then at the top level, then has a default.
    draft = _ConfigFile(path=file.path, values={**file.values, **file.section("dflash_config")})
    num_target_layers = file.integer("num_target_layers")
    config = DrafterConfig(
        **_transformer_values(file),
        num_target_layers=num_target_layers,
        target_layer_ids=_target_layer_ids(draft, num_target_layers),
        block_size=_block_size(draft),
        mask_token_id=draft.integer("mask_token_id", at_least=0),
        sliding_window=_sliding_window(file),
        conv_kernel_size=draft.integer("conv_kernel_size"),
        conv_group_size=draft.integer("conv_group_size"),
        selector_rank=draft.integer("selector_rank"),
        selector_top_k=draft.integer("selector_top_k"),
        input_embedding_scale=draft.number("input_embedding_scale", default=1.0),
        output_multiplier=draft.number("output_multiplier", default=1.0),
        final_logit_softcapping=_softcapping(draft),
        is_quantized=is_quantized,
    )
    _check_drafter(config, draft)
    return config


def check_pair(drafter: DrafterConfig, target: TargetConfig) -> None:
    """Raise unless the drafter was trained for a target of this shape."""
    pairs = {
        "hidden_size": (drafter.hidden_size, target.hidden_size),
        "vocab_size": (drafter.vocab_size, target.vocab_size),
        "num_target_layers": (drafter.num_target_layers, target.num_hidden_layers),
    }
    wrong = [
        f"{name} is {ours} in the drafter and {theirs} in the target"
        for name, (ours, theirs) in pairs.items()
        if ours != theirs
    ]
    if drafter.max_position_embeddings < target.max_position_embeddings:
        wrong.append(
            f"max_position_embeddings is only {drafter.max_position_embeddings} in the drafter "
            f"and {target.max_position_embeddings} in the target"
        )
    if wrong:
        raise ModelError(
            "the drafter does not fit the target: "
            + "; ".join(wrong)
            + ". Give --dflash2-model the drafter that was trained for this target."
        )


@dataclass(frozen=True, kw_only=True)
class _ConfigFile:
    """The values of one config.json, with typed look-ups whose errors quote file, key and value."""

    path: Path
    values: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "_ConfigFile":
        path = folder / "config.json"
        if not path.is_file():
            raise ModelError(f"{path}: no such file; name the folder of a checkpoint")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ModelError(f"{path}: not JSON ({error}); fetch the checkpoint again") from error
        if not isinstance(values, dict):
            raise ModelError(f"{path}: holds {type(values).__name__}, not a JSON object")
        return cls(path=path, values=values)

    def error(self, key: str, problem: str) -> ModelError:
        found = f"is {self.values[key]!r}" if key in self.values else "is missing"
        return ModelError(f"{self.path}: {key} {found}: {problem}")

    def expect(self, key: str, expected: object) -> None:
        if self.values.get(key) != expected:
            raise self.error(key, f"this engine runs only {expected!r} here")

    def section(self, key: str) -> dict[str, Any]:
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise self.error(key, "an object is needed")
        return value

    def integer(self, key: str, *, default: int | None = None, at_least: int = 1) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self.error(key, f"a whole number of at least {at_least} is needed")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, "a number is needed")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false is needed")
        return value


def _dense_config(file: _ConfigFile, model_type: ModelType) -> TargetConfig:
    file.expect("model_type", model_type)
    if file.values.get("use_sliding_window"):
        raise file.error("use_sliding_window", "this engine's target attends to all positions")
    for kind in file.values.get("layer_types") or ():
        if kind != "full_attention":
            raise file.error("layer_types", f"{model_type} has no layer of kind {kind!r}")
    if file.flag("mlp_bias", default=False):
        raise file.error("mlp_bias", "this engine's projections have no bias")
    _expect_whole_heads_to_turn(file)
    return TargetConfig(
        **_transformer_values(file),
        model_type=model_type,
        tie_word_embeddings=file.flag("tie_word_embeddings", default=False),
        fp8_block=_fp8_block(file),
    )


def _with_head_dim(file: _ConfigFile) -> _ConfigFile:
    """Llama's files leave head_dim out where the heads divide the hidden size among themselves."""
    head_dim = file.integer("hidden_size") // file.integer("num_attention_heads")
    return _ConfigFile(path=file.path, values={"head_dim": head_dim, **file.values})


def _text_part(file: _ConfigFile) -> _ConfigFile:
    """The text model inside one that also sees; what both say, the inner one says last."""
    file.expect("model_type", "qwen3_5")
    outer = {
        key: file.values[key]
        for key in ("quantization_config", "quantization", "tie_word_embeddings", "dtype")
        if key in file.values
    }
    return _ConfigFile(path=file.path, values={**outer, **file.section("text_config")})


def _hybrid_config(file: _ConfigFile) -> HybridTargetConfig:
    file.expect("model_type", "qwen3_5_text")
    for key, only in (("attn_output_gate", True), ("mamba_ssm_dtype", "float32")):
        if file.values.get(key, only) != only:
            raise file.error(key, f"this engine runs only {only!r} here")
    num_key_heads = file.integer("linear_num_key_heads")
    num_value_heads = file.integer("linear_num_value_heads")
    if num_value_heads % num_key_heads:
        raise file.error(
            "linear_num_value_heads", f"linear_num_key_heads {num_key_heads} must divide it"
        )
    config = HybridTargetConfig(
        **_transformer_values(file),
        tie_word_embeddings=file.flag("tie_word_embeddings", default=False),
        fp8_block=_fp8_block(file),
        num_mtp_layers=_num_mtp_layers(file),
        layer_types=_layer_types(file),
        partial_rotary_factor=_rope(file).number("partial_rotary_factor", default=0.25),
        linear_num_key_heads=num_key_heads,
        linear_num_value_heads=num_value_heads,
        linear_key_head_dim=file.integer("linear_key_head_dim"),
        linear_value_head_dim=file.integer("linear_value_head_dim"),
        linear_conv_kernel_dim=file.integer("linear_conv_kernel_dim", at_least=2),
    )
    if config.rotary_dim < 2 or config.rotary_dim % 2:
        raise file.error("head_dim", f"{config.rotary_dim} of its channels would turn in pairs")
    return config


def _num_mtp_layers(file: _ConfigFile) -> int:
    num_layers = file.integer("mtp_num_hidden_layers", default=0, at_least=0)
    if num_layers > 1:
        raise file.error("mtp_num_hidden_layers", "this engine runs an MTP head of one layer")
    if file.flag("mtp_use_dedicated_embeddings", default=False):
        raise file.error("mtp_use_dedicated_embeddings", "here a head shares the embedding")
    return num_layers


def _layer_types(file: _ConfigFile) -> tuple[LayerKind, ...]:
    """The kinds as listed, or by the older key: every so many layers one of full attention."""
    num_layers = file.integer("num_hidden_layers")
    kinds = file.values.get("layer_types")
    if kinds is None:
        interval = file.integer("full_attention_interval", default=4)
        return tuple(
            "full_attention" if number % interval == 0 else "linear_attention"
            for number in range(1, num_layers + 1)
        )
    if (
        not isinstance(kinds, list)
        or len(kinds) != num_layers
        or not set(kinds) <= {"full_attention", "linear_attention"}
    ):
        raise file.error(
            "layer_types", f"{num_layers} of 'linear_attention' and 'full_attention' are needed"
        )
    return tuple(kinds)


def _fp8_block(file: _ConfigFile) -> tuple[int, int] | None:
    """Rows and columns of a weight that share a scale, where the file says it is FP8."""
    key = "quantization_config"
    if file.values.get(key) is None:
        return None
    said = _ConfigFile(path=file.path, values=file.section(key))
    said.expect("quant_method", "fp8")
    if said.values.get("fmt", "e4m3") != "e4m3":
        raise said.error("fmt", "this engine reads e4m3 only")
    match said.values.get("weight_block_size"):
        case [int(rows), int(columns)] if rows > 0 and columns > 0:
            return rows, columns
    raise said.error("weight_block_size", "two whole numbers, rows and columns, are needed")


def _transformer_values(file: _ConfigFile) -> dict[str, Any]:
    if file.values.get("quantization") is not None:
        raise file.error("quantization", "this engine reads unquantised checkpoints only")
    if file.flag("attention_bias", default=False):
        raise file.error("attention_bias", "this engine's projections have no bias")
    file.expect("hidden_act", "silu")
    num_heads = file.integer("num_attention_heads")
    num_groups = file.integer("num_key_value_heads")
    if num_heads % num_groups:
        raise file.error("num_key_value_heads", f"it must divide num_attention_heads {num_heads}")
    if file.integer("head_dim", at_least=2) % 2:
        raise file.error("head_dim", "rotary positions need an even number")
    return {
        "vocab_size": file.integer("vocab_size"),
        "hidden_size": file.integer("hidden_size"),
        "intermediate_size": file.integer("intermediate_size"),
        "num_hidden_layers": file.integer("num_hidden_layers"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_groups,
        "head_dim": file.integer("head_dim"),
        "max_position_embeddings": file.integer("max_position_embeddings"),
        "rms_norm_eps": file.number("rms_norm_eps"),
        "rope_theta": _rope(file).number("rope_theta"),
        "dtype": file.values.get("dtype", file.values.get("torch_dtype")),
    }


def _rope(file: _ConfigFile) -> _ConfigFile:
    """transformers 5 writes rope_parameters, transformers 4 rope_theta and rope_scaling."""
    key = "rope_parameters" if file.values.get("rope_parameters") is not None else "rope_scaling"
    rope = file.section(key) if file.values.get(key) is not None else {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise file.error(key, "this engine has only the default rotary positions")
    return _ConfigFile(path=file.path, values={**file.values, **rope})


def _expect_whole_heads_to_turn(file: _ConfigFile) -> None:
    if _rope(file).number("partial_rotary_factor", default=1.0) != 1.0:
        key = "rope_parameters" if "rope_parameters" in file.values else "partial_rotary_factor"
        raise file.error(key, "this model rotates whole heads only")


def _refuse_what_the_engine_lacks(file: _ConfigFile) -> None:
    _expect_whole_heads_to_turn(file)
    if file.values.get("quantization_config") is not None:
        raise file.error("quantization_config", "this engine has no such drafter")
    draft = _ConfigFile(path=file.path, values={**file.values, **file.section("dflash_config")})
    if draft.flag("sample_from_anchor", default=False):
        raise draft.error("sample_from_anchor", "in DFlash 2 the anchor's row proposes nothing")
    if draft.number("attention_value_scale", default=1.0) != 1.0:
        raise draft.error("attention_value_scale", "this engine does not scale values")
    # Neither is_causal nor dflash_config.causal means causal for a sliding layer: old checkpoints.
    if file.values.get("is_causal", file.section("dflash_config").get("causal", True)) is not False:
        raise file.error("is_causal", "this engine runs noncausal blocks only (false)")
    side_file = file.path.with_name("mask_embedding.pt")
    if side_file.exists():
        raise ModelError(f"{side_file}: this engine takes the mask's embedding from the target")


def _sliding_window(file: _ConfigFile) -> int:
    """The window of every layer; a parser that loses it would silently see the whole context."""
    kinds = file.values.get("layer_types")
    if kinds != ["sliding_attention"] * file.integer("num_hidden_layers"):
        raise file.error("layer_types", "one 'sliding_attention' for each layer is needed")
    if file.values.get("use_sliding_window") is not True:
        raise file.error(
            "use_sliding_window", "the layers are 'sliding_attention'; without true they lose it"
        )
    return file.integer("sliding_window", at_least=2)


def _target_layer_ids(draft: _ConfigFile, num_target_layers: int) -> tuple[int, ...]:
    ids = draft.values.get("target_layer_ids")
    if ids is None:
        return _default_target_layer_ids(num_target_layers, draft.integer("num_hidden_layers"))
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise draft.error("target_layer_ids", "a list of layer numbers is needed")
    return tuple(ids)


def _default_target_layer_ids(num_target_layers: int, num_draft_layers: int) -> tuple[int, ...]:
    """The reference's choice: evenly spread from layer 1 to the fourth from the end."""
    if num_draft_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_draft_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_draft_layers))


def _block_size(draft: _ConfigFile) -> int:
    size = draft.integer("block_size", default=DEFAULT_BLOCK_SIZE, at_least=2)
    if size > MAX_BLOCK_SIZE:
        raise draft.error("block_size", f"this engine runs blocks of at most {MAX_BLOCK_SIZE} rows")
    return size


def _without_q8(file: _ConfigFile) -> tuple[_ConfigFile, bool]:
    """The config of a converted drafter as it was before, and whether it is a converted one."""
    said = file.values.get("quantization")
    if said is None:
        return file, False
    if not isinstance(said, dict) or {"mode": "affine", **said} != AFFINE_Q8:
        raise file.error("quantization", f"this engine's quantised drafters have {AFFINE_Q8}")
    # mlx-lm writes the same object a second time as quantization_config.
    values = {
        key: value
        for key, value in file.values.items()
        if key not in ("quantization", "quantization_config") or value != said
    }
    return _ConfigFile(path=file.path, values=values), True


def _softcapping(draft: _ConfigFile) -> float | None:
    if draft.values.get("final_logit_softcapping") is None:
        return None
    return draft.number("final_logit_softcapping")


def _check_drafter(config: DrafterConfig, file: _ConfigFile) -> None:
    taps = config.target_layer_ids
    if list(taps) != sorted(set(taps)) or taps[0] < 0 or taps[-1] >= config.num_target_layers:
        raise file.error(
            "target_layer_ids",
            f"layers must rise strictly from 0 to {config.num_target_layers - 1}, "
            f"the last of num_target_layers {config.num_target_layers}",
        )
    if config.hidden_size % config.conv_group_size:
        raise file.error("conv_group_size", f"it must divide hidden_size {config.hidden_size}")
    for key, value, limit in (
        ("selector_top_k", config.selector_top_k, config.vocab_size),
        ("mask_token_id", config.mask_token_id, config.vocab_size - 1),
    ):
        if value > limit:
            raise file.error(key, f"at most {limit} fits vocab_size {config.vocab_size}")
