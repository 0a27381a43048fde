"""Writes the golden models: small random models of every supported variant, and what
transformers computes with them in float32.

    python make.py ../../golden [variants; all without any]

Each folder gets config.json, the weights, and golden.json:
    prompt      token ids given
    greedy      token ids that follow, each the most likely one
    logprobs    log probability of each greedy token
    gaps        logit of the most likely token minus that of the second, at each step
    rows        [{step, logits}]: all logits before the greedy token `step`
    hidden      [layers][d]: the residual stream after each layer, at the prompt's last token
The f32 folders of newer families also get saved_config.json: the same configuration in the form
that transformers 5 writes.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

PROMPT_TOKENS = 24
GREEDY_TOKENS = 16
ROW_STEPS = (0, 7, 15)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

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
# Keys of BASE that the families do without, so that their defaults are tested too.
ABSENT = {"gemma3": ["hidden_act", "tie_word_embeddings"], "smollm3": ["tie_word_embeddings"]}
TIED_BY_DEFAULT = ["gemma3_text", "smollm3"]


def tensor_shapes(config):
    """Name -> shape of every weight of a model with `config`."""
    d, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", d // config["num_attention_heads"])
    q, kv = (config[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], d), "model.norm.weight": (d,)}
    tied = config.get("tie_word_embeddings", config["model_type"] in TIED_BY_DEFAULT)
    if not tied:
        shapes["lm_head.weight"] = (config["vocab_size"], d)
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "input_layernorm": (d,),
            "self_attn.q_proj": (q, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, q),
            "post_attention_layernorm": (d,),
            "mlp.gate_proj": (inner, d),
            "mlp.up_proj": (inner, d),
            "mlp.down_proj": (d, inner),
        }
        if config["model_type"] in ("qwen3", "gemma3_text"):
            parts |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
        if config["model_type"] == "gemma3_text":
            parts |= {"pre_feedforward_layernorm": (d,), "post_feedforward_layernorm": (d,)}
        shapes |= {f"model.layers.{layer}.{part}.weight": s for part, s in parts.items()}
        if config["model_type"] == "qwen2":
            biases = {"q_proj": (q,), "k_proj": (kv,), "v_proj": (kv,)}
            shapes |= {f"model.layers.{layer}.self_attn.{p}.bias": s for p, s in biases.items()}
    return shapes


def random_weights(config, dtype_of, seed):
    """Weights wide enough that the next token is seldom a close call: uniform logits would make
    every comparison a coin toss."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1 and not name.endswith(".bias"):
            # Gemma's files hold the weights of norms minus 1.
            values = 0.3 * values + (config["model_type"] != "gemma3_text")
        else:
            values = 0.4 * values
        weights[name] = values.to(dtype_of(name))
    return weights


def write_weights(folder, weights, shards):
    """One model.safetensors, or several with their index."""
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = sorted(weights), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({n: weights[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(w.nbytes for w in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def run(folder, config, seed):
    """Runs transformers on the files of `folder` and returns the content of golden.json."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return run_model(model, config["vocab_size"], seed)


@torch.no_grad()
def run_model(model, vocab_size, seed):
    """Runs `model` and returns the content of golden.json."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(4, vocab_size, (PROMPT_TOKENS,), generator=generator).tolist()
    golden = {"prompt": prompt, "greedy": [], "logprobs": [], "gaps": [], "rows": []}
    golden["hidden"] = hidden_states(model, prompt)
    for step in range(GREEDY_TOKENS):
        tokens = torch.tensor([prompt + golden["greedy"]])
        logits = model(tokens, use_cache=False).logits[0, -1]
        top = logits.topk(2)
        token = top.indices[0].item()
        golden["greedy"].append(token)
        golden["logprobs"].append(logits.log_softmax(-1)[token].item())
        golden["gaps"].append((top.values[0] - top.values[1]).item())
        if step in ROW_STEPS:
            golden["rows"].append({"step": step, "logits": logits.tolist()})
    return golden


def hidden_states(model, prompt):
    """Residual stream after each layer at the last token of `prompt`: [layers][d]."""
    outputs = []
    # An adapter's model has the base model within.
    layers = next(m for name, m in model.named_modules() if name.endswith("model.layers"))
    hooks = [
        layer.register_forward_hook(
            lambda _m, _i, out: outputs.append((out[0] if isinstance(out, tuple) else out)[0, -1])
        )
        for layer in layers
    ]
    model(torch.tensor([prompt]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return [output.tolist() for output in outputs]


def rounded(value):
    """Nine digits hold a float32 exactly."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def make(folder, config, dtype_of, seed, shards=1):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_weights(folder, random_weights(config, dtype_of, seed), shards)
    golden = rounded(run(folder, config, seed))
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{folder.name:22} smallest gap {min(golden['gaps']):.4f}")


def save_config(folder):
    """The configuration of `folder` as this version of transformers writes it."""
    config = AutoConfig.from_pretrained(folder)
    (folder / "saved_config.json").write_text(config.to_json_string())


def main(out, wanted):
    variants = VARIANTS | FAMILIES
    for number, variant in enumerate(variants):
        if wanted and variant not in wanted:
            continue
        absent = ABSENT.get(variant, [])
        config = BASE | variants[variant]
        config = {k: v for k, v in config.items() if k not in absent}
        for name, dtype in DTYPES.items():
            make(out / f"{variant}-{name}", config, lambda _: dtype, seed=number)
        if variant in FAMILIES:
            save_config(out / f"{variant}-f32")
    if wanted:
        return
    config = BASE | LLAMA
    make(out / "sharded-bf16", config, lambda _: torch.bfloat16, seed=100, shards=3)
    kinds = list(DTYPES.values())
    make(out / "mixed", config, lambda name: kinds[len(name) % 3], seed=101)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
