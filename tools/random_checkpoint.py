"""Writes a checkpoint with random weights and a real model's exact shape, to measure loading and
serving from a file.

    python tools/random_checkpoint.py llama3-8b FOLDER

writes FOLDER/llama3-8b.safetensors (16 GB), config.json and tokenizer.json. The tokenizer is the
demo model's, whose ids are within the vocabulary; the answers are noise. Needs PyTorch, and uses
the GPU if there is one.
"""

import json
import pathlib
import shutil
import struct
import sys

import torch

SHAPES = {
    "llama3-8b": dict(
        layers=32, d=4096, ff=14336, heads=32, kv_heads=8, vocab=128256, context=8192
    ),
    "small": dict(layers=2, d=256, ff=352, heads=4, kv_heads=2, vocab=1024, context=512),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors(s):
    """(name, shape) in the order of the file."""
    hd = s["d"] // s["heads"]
    q, kv, d, ff = s["d"], s["kv_heads"] * hd, s["d"], s["ff"]
    yield "model.embed_tokens.weight", (s["vocab"], d)
    for layer in range(s["layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (d,)
        for part, shape in [("q", (q, d)), ("k", (kv, d)), ("v", (kv, d)), ("o", (d, q))]:
            yield f"{name}self_attn.{part}_proj.weight", shape
        yield name + "post_attention_layernorm.weight", (d,)
        for part, shape in [("gate", (ff, d)), ("up", (ff, d)), ("down", (d, ff))]:
            yield f"{name}mlp.{part}_proj.weight", shape
    yield "model.norm.weight", (d,)
    yield "lm_head.weight", (s["vocab"], d)


def config(s):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s["vocab"],
        "hidden_size": s["d"],
        "intermediate_size": s["ff"],
        "num_hidden_layers": s["layers"],
        "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv_heads"],
        "hidden_act": "silu",
        "max_position_embeddings": s["context"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        sys.exit(f"usage: random_checkpoint.py {'|'.join(SHAPES)} FOLDER")
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    s, header, at = SHAPES[name], {}, 0
    for tensor, shape in tensors(s):
        size = 2 * torch.Size(shape).numel()
        header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    torch.manual_seed(1)
    with open(folder / f"{name}.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor, shape in tensors(s):
            values = torch.randn(shape, device=DEVICE, dtype=torch.float32) * 0.02 + (
                1.0 if len(shape) == 1 else 0.0
            )
            file.write(values.to(torch.bfloat16).view(torch.uint16).cpu().numpy().tobytes())
    (folder / "config.json").write_text(json.dumps(config(s), indent=2))
    shutil.copy(pathlib.Path(__file__).parent.parent / "assets/demo/tokenizer.json", folder)
    print(f"{folder / name}.safetensors: {at / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
