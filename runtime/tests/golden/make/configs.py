"""Configurations of the golden models."""

# Configuration shared by the variants; each overrides what defines it.
BASE = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_theta": 10000.0}
# Smaller, so that an f32 folder stays below 64 kB.
SMALL = {"intermediate_size": 24, "tie_word_embeddings": True}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1000000.0}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1000000.0}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "pad_token_id": 0}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "rope_theta": 10000.0,
    "pad_token_id": 0,
}
MINISTRAL = {"architectures": ["MinistralForCausalLM"], "model_type": "ministral"}

# The trained context is so short that, with heads 16 wide, each branch of the rule has a frequency
# that turns within the sequence: wavelengths 6.3 (kept), 32 (on the ramp), 167 (stretched).
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "llama2": LLAMA | {"num_key_value_heads": 4},
    "llama3": LLAMA | {"rope_theta": 500000.0, "eos_token_id": [2, 3]},
    "llama3.1": LLAMA
    | {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3_SCALING | {"rope_type": "llama3"},
    },
    "llama3.2": LLAMA
    | {
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3_SCALING | {"rope_type": "llama3", "factor": 32.0},
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "rope_parameters": {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    | {
        "head_dim": 16,
        "rope_parameters": LLAMA3_SCALING | {"rope_type": "llama3", "rope_theta": 500000.0},
    },
    "vicuna": LLAMA | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6},
    "mistral": MISTRAL | {"sliding_window": 8, "head_dim": 8},
    "ministral": MINISTRAL
    | {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "head_dim": 16,
        "num_hidden_layers": 3,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
# Newer families, each with whatever sets it apart within two layers.
FAMILIES = {
    "qwen2": QWEN2
    | SMALL
    | {
        "tie_word_embeddings": False,
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
    },
    "qwen3": QWEN3 | SMALL | {"head_dim": 12, "intermediate_size": 16, "attention_bias": False},
    "smollm2": LLAMA
    | SMALL
    | {
        "hidden_size": 36,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rope_theta": 100000.0,
    },
    "smollm3": SMOLLM3
    | {k: v for k, v in SMALL.items() if k != "tie_word_embeddings"}
    | {"rope_theta": 5000000.0, "no_rope_layer_interval": 2},
    "gemma3": GEMMA3
    | {
        "intermediate_size": 16,
        "head_dim": 12,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}
# Small experts: more of them than a token has, so that some are not used.
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MIXTURES = {
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "rope_theta": 1000000.0,
        "intermediate_size": 8,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
    "gpt_oss": SMALL
    | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 32,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "attention_bias": True,
    },
    "olmoe": SMALL
    | {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "rope_theta": 10000.0,
        "intermediate_size": 8,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "clip_qkv": None,
    },
    "qwen2_moe": QWEN2
    | SMALL
    | EXPERTS
    | {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 12,
        "norm_topk_prob": False,
    },
    "qwen3_moe": QWEN3
    | SMALL
    | EXPERTS
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 12,
        "num_hidden_layers": 3,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "norm_topk_prob": True,
        "attention_bias": False,
    },
}
# Key heads that several value heads share, heads of another width than attention's.
DELTA_NET = {
    "head_dim": 16,
    "partial_rotary_factor": 0.5,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "attention_bias": False,
}
HYBRIDS = {
    "qwen3_5": SMALL
    | DELTA_NET
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "rope_theta": 10000000.0,
        "num_hidden_layers": 3,
        "intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    },
    "qwen3_next": SMALL
    | DELTA_NET
    | EXPERTS
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "rope_theta": 10000000.0,
        "num_experts": 4,
        "shared_expert_intermediate_size": 12,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "full_attention_interval": 2,
    },
}
# The original context is below that of the golden prompt, so that the long factors count.
LONG_ROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4],
    "long_factor": [1.1, 1.5, 2.0, 3.0, 5.0, 8.0],
}
SCALED = {
    "phi3": PHI3
    | SMALL
    | {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "original_max_position_embeddings": 16,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG_ROPE,
    },
    "phi3_short": PHI3
    | SMALL
    | {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "original_max_position_embeddings": 128,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG_ROPE,
        "sliding_window": 8,
        "tie_word_embeddings": False,
    },
    "granite": {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "rope_theta": 10000.0,
        "intermediate_size": 24,
        "tie_word_embeddings": True,
        "embedding_multiplier": 1.5,
        "attention_multiplier": 0.4,
        "residual_multiplier": 0.6,
        "logits_scaling": 0.5,
    },
    "dynamic": LLAMA | SMALL | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}},
}
# Keys of BASE that the families do without, so that their defaults are tested too.
ABSENT = {"gemma3": ["hidden_act", "tie_word_embeddings"], "smollm3": ["tie_word_embeddings"]}
TIED_BY_DEFAULT = ["gemma3_text", "smollm3"]
