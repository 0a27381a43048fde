"""Writes the golden adapters: random LoRA adapters of golden models, and what PEFT computes with
them in float32.

    python lora.py ../../golden ../../golden-lora

Each folder gets the adapter as PEFT saves it, and golden.json as make.py writes it, with `base`, the
golden model.
"""

import json
import sys
from pathlib import Path

import make
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Base, and the configuration of the adapter.
VARIANTS = {
    "all": ("llama3-f32", {"r": 4, "lora_alpha": 8, "target_modules": ALL}),
    "attention": ("qwen2-f32", {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj"]}),
    "rslora": (
        "gemma3-f32",
        {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": ALL},
    ),
    "patterns": (
        "qwen3-f32",
        {
            "r": 2,
            "lora_alpha": 3,
            "target_modules": ALL,
            "layers_to_transform": [1],
            "rank_pattern": {"down_proj": 5, "layers.1.self_attn.o_proj": 1},
            "alpha_pattern": {"model.layers.1.mlp.gate_proj": 7, "q_proj": 1},
        },
    ),
    "bf16": ("llama2-bf16", {"r": 16, "lora_alpha": 16, "target_modules": ALL}),
    # Of the same model as `all`, for batches of several.
    "other": ("llama3-f32", {"r": 6, "lora_alpha": 9, "target_modules": ["o_proj", "up_proj"]}),
}


def write(folder, base, options, seed):
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.float32, attn_implementation="eager"
    )
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "lora_" in name:
                weights.copy_(0.3 * torch.randn(weights.shape, generator=generator))
                if base.name.endswith("bf16"):
                    weights.copy_(weights.to(torch.bfloat16))
    model = model.eval()
    golden = make.run_model(model, model.config.vocab_size, seed)
    golden = {"base": base.name} | make.rounded(golden)
    if base.name.endswith("bf16"):
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()
    # A path of the machine that wrote it.
    config["base_model_name_or_path"] = base.name
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{folder.name:12} smallest gap {min(golden['gaps']):.4f}")


def main(bases, out):
    for number, (name, (base, options)) in enumerate(VARIANTS.items()):
        write(out / name, bases / base, options, seed=200 + number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
