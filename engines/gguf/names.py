"""What llama.cpp (b11434) calls the tensors of a qwen3 target and of a DFlash 2 drafter.

Names alone: shapes and numbers stay as they are in the checkpoint.
"""

import re

from engines.dflash2.config import ModelError

# Published name -> GGUF name; a layer's stand behind `layers.N.` there and `blk.N.` here.
_OF_A_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
}
_OF_THE_MODEL = {
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def gguf_name(published: str) -> str:
    """Targets put `model.` before their names, drafters do not."""
    name = published.removeprefix("model.")
    layer = _LAYER.fullmatch(name)
    if layer is None:
        found = _OF_THE_MODEL.get(name)
    else:
        found = _OF_A_LAYER.get(layer[2])
        found = found and f"blk.{layer[1]}.{found}"
    if found is None:
        raise ModelError(
            f"{published}: no tensor of that name is known in a GGUF file; export a qwen3 target "
            "or its DFlash 2 drafter"
        )
    return found
