//! Names of tensors in GGUF files.

use crate::model::Architecture;

/// Name in Hugging Face's checkpoints, and in GGUF: tensors outside of the layers.
const MODEL: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];
/// The same for the parts of a layer, without `model.layers.N.` or `blk.N.`, and without
/// `.weight` or `.bias`.
const LAYER: [(&str, &str); 28] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.w2", "ffn_down_exps"),
];

/// Returns the name in GGUF files of the tensor that Hugging Face's checkpoints call `name`.
pub(in crate::model) fn stored_name(architecture: Architecture, name: &str) -> String {
    if let Some((_, stored)) = MODEL.iter().find(|(known, _)| *known == name) {
        return stored.to_string();
    }
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let parts = layer.and_then(|(index, rest)| Some((index, rest.rsplit_once('.')?)));
    let Some((index, (part, kind))) = parts else { return name.to_string() };
    if (part, kind) == ("self_attn", "sinks") {
        return format!("blk.{index}.attn_sinks.weight");
    }
    // Gemma has this norm after attention, the other families before the MLP.
    let is_post_norm = architecture.has_post_norms() || architecture == Architecture::GptOss;
    if part == "post_attention_layernorm" && is_post_norm {
        return format!("blk.{index}.post_attention_norm.{kind}");
    }
    let stored = LAYER.iter().find(|(known, _)| *known == part);
    format!("blk.{index}.{}.{kind}", stored.map_or(part, |(_, stored)| stored))
}
