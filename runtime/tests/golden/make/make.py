"""Writes the golden models: small random models of every supported variant, and what
transformers computes with them in float32.

    python make.py ../../golden [variants; all without any]
    python make.py --long OTHER_FOLDER [variants of newer families; all without any]

The second writes longer runs, for the test that reads the folder TRAIL_GOLDEN: each mixture,
hybrid and family with factors with 3 seeds, a mixture with 16 experts, of which two have equal scores for every token and
one is never chosen.

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

from configs import (
    ABSENT,
    BASE,
    FAMILIES,
    HYBRIDS,
    LLAMA,
    MIXTURES,
    SCALED,
    TIED_BY_DEFAULT,
    VARIANTS,
)

PROMPT_TOKENS = 24
GREEDY_TOKENS = 16
ROW_STEPS = (0, 7, 15)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


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
        experts = layer not in config.get("mlp_only_layers", [])
        parts = {
            "input_layernorm": (d,),
            "self_attn.q_proj": (q, d),
            "self_attn.k_proj": (kv, d),
            "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, q),
            "post_attention_layernorm": (d,),
        }
        if is_hybrid(config):
            shapes |= delta_net_shapes(config, layer, parts)
        parts |= mixture_shapes(config) if experts else {}
        parts |= {} if "mlp.gate" in parts or "block_sparse_moe.gate" in parts else {
            "mlp.gate_proj": (inner, d),
            "mlp.up_proj": (inner, d),
            "mlp.down_proj": (d, inner),
        }
        if config["model_type"] == "phi3":
            for part in ("q_proj", "k_proj", "v_proj"):
                parts.pop(f"self_attn.{part}")
            for part in ("gate_proj", "up_proj"):
                parts.pop(f"mlp.{part}")
            parts |= {"self_attn.qkv_proj": (q + 2 * kv, d), "mlp.gate_up_proj": (2 * inner, d)}
        has_norms = is_hybrid(config) and "self_attn.q_proj" in parts
        if has_norms or config["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"):
            parts |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
        if config["model_type"] == "gpt_oss":
            count = config["num_local_experts"]
            for kind in ("gate_proj", "up_proj", "down_proj"):
                parts.pop(f"mlp.{kind}")
            shapes |= {
                f"model.layers.{layer}.{part}": shape
                for part, shape in {
                    "mlp.router.weight": (count, d),
                    "mlp.router.bias": (count,),
                    "mlp.experts.gate_up_proj": (count, d, 2 * inner),
                    "mlp.experts.gate_up_proj_bias": (count, 2 * inner),
                    "mlp.experts.down_proj": (count, inner, d),
                    "mlp.experts.down_proj_bias": (count, d),
                    "self_attn.sinks": (config["num_attention_heads"],),
                    "self_attn.o_proj.bias": (d,),
                }.items()
            }
        if config["model_type"] == "olmoe":
            parts |= {"self_attn.q_norm": (q,), "self_attn.k_norm": (kv,)}
        if config["model_type"] == "gemma3_text":
            parts |= {"pre_feedforward_layernorm": (d,), "post_feedforward_layernorm": (d,)}
        shapes |= {f"model.layers.{layer}.{part}.weight": s for part, s in parts.items()}
        if config["model_type"] in ("qwen2", "qwen2_moe", "gpt_oss"):
            biases = {"q_proj": (q,), "k_proj": (kv,), "v_proj": (kv,)}
            shapes |= {f"model.layers.{layer}.self_attn.{p}.bias": s for p, s in biases.items()}
    return shapes


def is_hybrid(config):
    return config["model_type"] in ("qwen3_5_text", "qwen3_next")


def delta_net_shapes(config, layer, parts):
    """Name -> shape of the weights of a gated delta net, if `layer` has one in place of attention,
    which is then taken out of `parts`; else attention gets its gate."""
    d, interval = config["hidden_size"], config.get("full_attention_interval", 4)
    linear = bool((layer + 1) % interval)
    if "layer_types" in config:
        linear = config["layer_types"][layer] == "linear_attention"
    if not linear:
        parts["self_attn.q_proj"] = (2 * parts["self_attn.q_proj"][0], d)
        return {}
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        parts.pop(f"self_attn.{part}")
    heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values, channels = heads * width, 2 * keys + heads * width
    shapes = {
        "conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"]),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (width,),
        "out_proj.weight": (d, values),
    }
    if config["model_type"] == "qwen3_next":
        shapes |= {"in_proj_qkvz.weight": (channels + values, d)}
        shapes |= {"in_proj_ba.weight": (2 * heads, d)}
    else:
        shapes |= {"in_proj_qkv.weight": (channels, d), "in_proj_z.weight": (values, d)}
        shapes |= {"in_proj_b.weight": (heads, d), "in_proj_a.weight": (heads, d)}
    return {f"model.layers.{layer}.linear_attn.{part}": shape for part, shape in shapes.items()}


def mixture_shapes(config):
    """Name -> shape of the weights of a layer with experts; empty for other families."""
    d = config["hidden_size"]
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    if config["model_type"] == "mixtral":
        prefix, names = "block_sparse_moe", ("w1", "w3", "w2")
    else:
        prefix, names = "mlp", ("gate_proj", "up_proj", "down_proj")
    count = config.get("num_experts", config.get("num_local_experts"))
    if count is None or config["model_type"] == "gpt_oss":
        return {}
    shapes = {f"{prefix}.gate": (count, d)}
    for expert in range(count):
        of_expert = zip(names, [(inner, d), (inner, d), (d, inner)])
        shapes |= {f"{prefix}.experts.{expert}.{name}": shape for name, shape in of_expert}
    if shared := config.get("shared_expert_intermediate_size"):
        for name, shape in zip(names, [(shared, d), (shared, d), (d, shared)]):
            shapes[f"mlp.shared_expert.{name}"] = shape
        shapes["mlp.shared_expert_gate"] = (1, d)
    return shapes


def tie_and_bar_experts(config, weights):
    """Gives experts 3 and 9 equal scores for every token, and expert 5 the lowest ones: its scores
    are those of expert 0 less 50 by a bias, or its row is opposite to that of expert 0, times 9."""
    for name in list(weights):
        if name.endswith((".gate.weight", ".router.weight")):
            weights[name][9] = weights[name][3]
            weights[name][5] = -9 * weights[name][0]
        if name.endswith(".router.bias"):
            weights[name][9], weights[name][5] = weights[name][3], -50.0
    return weights


def stable_topk(values, k, dim=-1):
    """torch.topk with equal values in the order of their indices."""
    found = torch.sort(values, dim=dim, descending=True, stable=True)
    return torch.return_types.topk((found.values[..., :k], found.indices[..., :k]))


def make_long(out, wanted):
    """The longer runs of mixtures."""
    global PROMPT_TOKENS, GREEDY_TOKENS, ROW_STEPS
    PROMPT_TOKENS, GREEDY_TOKENS, ROW_STEPS = 40, 200, (0, 199)
    torch.topk = stable_topk
    for variant, changes in (MIXTURES | HYBRIDS | SCALED).items():
        config = BASE | changes | {"max_position_embeddings": 256}
        experts = [key for key in ("num_local_experts", "num_experts") if key in changes]
        config |= dict.fromkeys(experts, 16)
        if config.get("original_max_position_embeddings") == BASE["max_position_embeddings"]:
            config["original_max_position_embeddings"] = 256
        for seed in range(3 if not wanted or variant in wanted else 0):
            folder = out / f"{variant}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
            weights = random_weights(config, lambda _: torch.float32, 1000 + seed)
            write_weights(folder, tie_and_bar_experts(config, weights), 1)
            golden = rounded(run(folder, config, seed))
            (folder / "golden.json").write_text(json.dumps(golden) + "\n")
            print(f"{folder.name:22} smallest gap {min(golden['gaps']):.4f}")


def random_weights(config, dtype_of, seed):
    """Weights wide enough that the next token is seldom a close call: uniform logits would make
    every comparison a coin toss."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1 and not name.endswith((".bias", ".sinks", ".A_log", ".dt_bias")):
            # Gemma's and the hybrids' files hold the weights of norms minus 1.
            less_one = config["model_type"] == "gemma3_text" or is_hybrid(config)
            values = 0.3 * values + (not less_one or "linear_attn" in name)
        else:
            values = 0.4 * values
        weights[name] = values.to(dtype_of(name))
    return weights


def to_mxfp4(weights):
    """The experts of gpt-oss in MXFP4, rounded to the nearest code of a scale per 32 values."""
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.cat([codes, -codes])
    for name in [n for n in weights if n.endswith(("gate_up_proj", "down_proj"))]:
        if ".experts." not in name:
            continue
        # Blocks run along the input, which is the last dimension here.
        values = weights.pop(name).float().transpose(1, 2).unflatten(-1, (-1, 32))
        exponent = (values.abs().amax(-1) / 6).log2().ceil().clamp(-127, 127)
        nearest = (values / exponent.exp2()[..., None])[..., None] - codes
        nearest = nearest.abs().argmin(-1).to(torch.uint8)
        weights[f"{name}_blocks"] = nearest[..., 0::2] | nearest[..., 1::2] << 4
        weights[f"{name}_scales"] = (exponent + 127).to(torch.uint8)
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
    ).float()  # Weights in MXFP4 are widened to bf16, which holds them.
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
    weights = random_weights(config, dtype_of, seed)
    if "quantization_config" in config:
        weights = to_mxfp4(weights)
    write_weights(folder, weights, shards)
    golden = rounded(run(folder, config, seed))
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{folder.name:22} smallest gap {min(golden['gaps']):.4f}")


def save_config(folder):
    """The configuration of `folder` as this version of transformers writes it."""
    config = AutoConfig.from_pretrained(folder)
    (folder / "saved_config.json").write_text(config.to_json_string())


def main(out, wanted):
    variants = VARIANTS | FAMILIES | MIXTURES | HYBRIDS | SCALED
    for number, variant in enumerate(variants):
        if wanted and variant not in wanted:
            continue
        absent = ABSENT.get(variant, [])
        config = BASE | variants[variant]
        config = {k: v for k, v in config.items() if k not in absent}
        for name, dtype in DTYPES.items():
            has_no_f16 = variant in MIXTURES | HYBRIDS | SCALED
            if has_no_f16 and name == "f16" or variant == "gpt_oss" and name != "f32":
                continue
            make(out / f"{variant}-{name}", config, lambda _: dtype, seed=number)
        if variant == "gpt_oss":
            quantized = config | {"quantization_config": {"quant_method": "mxfp4"}}
            make(out / f"{variant}-mxfp4", quantized, lambda _: torch.bfloat16, seed=number)
        if variant in FAMILIES | MIXTURES | HYBRIDS | SCALED:
            save_config(out / f"{variant}-f32")
    if wanted:
        return
    config = BASE | LLAMA
    make(out / "sharded-bf16", config, lambda _: torch.bfloat16, seed=100, shards=3)
    kinds = list(DTYPES.values())
    make(out / "mixed", config, lambda name: kinds[len(name) % 3], seed=101)


if __name__ == "__main__":
    if sys.argv[1] == "--long":
        make_long(Path(sys.argv[2]), sys.argv[3:])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
