"""Writes a checkpoint with random weights and a real model's exact shape, to measure loading and
serving from a file.

    python benches/random_checkpoint.py llama3-8b FOLDER
    python benches/random_checkpoint.py llama3.2-1b FILE.gguf --dtype q4_k
    python benches/random_checkpoint.py qwen3-30b-a3b FILE.gguf --dtype q4_k --layers 8

The first writes FOLDER/llama3-8b.safetensors (16 GB), config.json and tokenizer.json. The tokenizer
is the demo model's, whose ids are within the vocabulary; the answers are noise. Needs PyTorch, and
uses the GPU, if any.

The second writes a GGUF file that trail-rt and llama.cpp both load, with a byte-level vocabulary
padded to the shape's size. Needs gguf. Matrices are of --dtype: bf16, f16, f32, q8_0, q4_0, q4_1,
q5_0, q5_1, q4_k, q5_k or q6_k, the quantized ones as random blocks whose values have the deviation
of the others. The output projection, which is the embedding where the two are tied, is what
llama.cpp's quantizer makes of it: q6_k, or --dtype if that is bf16, f16, f32 or q8_0. The two types
of a Q4_K_M file (q6_k in a half of attn_v and ffn_down) are not imitated. A router is f32. --layers
writes the first layers alone, where a model does not fit.
"""

import argparse
import json
import pathlib
import shutil
import struct

import numpy as np

SHAPES = {
    "llama3-8b": dict(
        layers=32, d=4096, ff=14336, heads=32, kv_heads=8, vocab=128256, context=8192
    ),
    "llama3.2-1b": dict(
        layers=16, d=2048, ff=8192, heads=32, kv_heads=8, vocab=128256, context=131072, tied=True
    ),
    "qwen3-30b-a3b": dict(
        architecture="qwen3moe",
        layers=48,
        d=2048,
        ff=6144,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocab=151936,
        context=40960,
        experts=128,
        experts_used=8,
        expert_ff=768,
    ),
    "small": dict(layers=2, d=256, ff=352, heads=4, kv_heads=2, vocab=1024, context=512),
}
DEVIATION = 0.02
DTYPES = "bf16 f16 f32 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k".split()
# Names in GGUF files.
GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}


def head_dim(s):
    return s.get("head_dim", s["d"] // s["heads"])


def tensors(s):
    """(name, shape) in the order of the file."""
    hd = head_dim(s)
    q, kv, d, ff = s["heads"] * hd, s["kv_heads"] * hd, s["d"], s["ff"]
    yield "model.embed_tokens.weight", (s["vocab"], d)
    for layer in range(s["layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (d,)
        for part, shape in [("q", (q, d)), ("k", (kv, d)), ("v", (kv, d)), ("o", (d, q))]:
            yield f"{name}self_attn.{part}_proj.weight", shape
        yield name + "post_attention_layernorm.weight", (d,)
        if "experts" not in s:
            for part, shape in [("gate", (ff, d)), ("up", (ff, d)), ("down", (d, ff))]:
                yield f"{name}mlp.{part}_proj.weight", shape
            continue
        yield name + "self_attn.q_norm.weight", (hd,)
        yield name + "self_attn.k_norm.weight", (hd,)
        count, ff = s["experts"], s["expert_ff"]
        yield name + "mlp.router.weight", (count, d)
        for part, shape in [("gate", (ff, d)), ("up", (ff, d)), ("down", (d, ff))]:
            yield f"{name}mlp.experts.{part}_proj.weight", (count, *shape)
    yield "model.norm.weight", (d,)
    if not s.get("tied"):
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
        "tie_word_embeddings": s.get("tied", False),
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }


def safetensors(name, folder):
    """Writes a folder with a safetensors file in bf16."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
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
            values = torch.randn(shape, device=device, dtype=torch.float32) * DEVIATION + (
                1.0 if len(shape) == 1 else 0.0
            )
            file.write(values.to(torch.bfloat16).view(torch.uint16).cpu().numpy().tobytes())
    (folder / "config.json").write_text(json.dumps(config(s), indent=2))
    shutil.copy(pathlib.Path(__file__).parent.parent / "assets/demo/tokenizer.json", folder)
    print(f"{folder / name}.safetensors: {at / 1e9:.2f} GB")


def quantized(rng, dtype, count, block_bytes):
    """`count` random blocks [count, block bytes] with values of mean 0 and standard deviation
    DEVIATION."""
    blocks = np.frombuffer(rng.bytes(count * block_bytes), np.uint8).reshape(count, -1).copy()

    def put(at, values):
        blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(count, 2)

    # Integers 0..n have deviation sqrt((n^2 - 1) / 12); an offset of n / 2 leaves a mean of -1/2,
    # which a random sign of the scale takes out.
    bits = {"q8_0": 8, "q4_0": 4, "q4_1": 4, "q5_0": 5, "q5_1": 5, "q4_k": 4, "q5_k": 5, "q6_k": 6}
    n = 2.0 ** bits[dtype]
    linear = np.full(count, DEVIATION / np.sqrt((n * n - 1) / 12))
    centred = rng.choice([-1.0, 1.0], count) * DEVIATION / np.sqrt((n * n + 2) / 12)
    if dtype in ("q8_0", "q4_0", "q5_0"):
        put(0, centred)
    elif dtype in ("q4_1", "q5_1"):
        put(0, linear)
        put(2, -(n - 1) / 2 * linear)
    elif dtype in ("q4_k", "q5_k"):
        # Six-bit scales, and minima equal to them: two of each in three bytes.
        scales = rng.integers(32, 64, (count, 8), dtype=np.uint8)
        low, high = scales[:, :4], scales[:, 4:]
        blocks[:, 4:8] = blocks[:, 8:12] = low | high >> 4 << 6
        blocks[:, 12:16] = high & 15 | high << 4
        scale = linear / np.sqrt((scales.astype(float) ** 2).mean(1))
        put(0, scale)
        put(2, (n - 1) / 2 * scale)
    else:
        scales = rng.integers(64, 128, (count, 16), dtype=np.uint8)
        blocks[:, 192:208] = scales
        put(208, centred / np.sqrt((scales.astype(float) ** 2).mean(1)))
    return blocks


def matrix(rng, dtype, rows, cols, deviation=DEVIATION):
    """Random rows as bytes [rows, bytes of a row]."""
    import gguf

    kind = gguf.GGMLQuantizationType[dtype.upper()]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if dtype[0] == "q":
        return quantized(rng, dtype, rows * cols // block, block_bytes).reshape(rows, -1)
    values = rng.standard_normal((rows, cols), np.float32) * np.float32(deviation)
    return gguf.quants.quantize(values, kind).view(np.uint8).reshape(rows, -1)


def vocabulary(writer, size):
    """Adds a byte-level vocabulary of `size` tokens: bytes, three merges, padding, and Llama 3's
    control tokens among the last 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    chars = {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}
    merges = [("h", "e"), ("t", "he"), (chars[ord(" ")], "the")]
    tokens = [chars[b] for b in range(256)] + [a + b for a, b in merges]
    kinds = [1] * len(tokens)
    control = size - 256
    names = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 9: "<|eot_id|>"}
    for token in range(len(tokens), size):
        tokens.append(names.get(token - control, f"<|unused_{token}|>"))
        kinds.append(3 if token - control in names else 5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(control)
    writer.add_eos_token_id(control + 1)
    writer.add_eot_token_id(control + 9)


def gguf_name(name):
    """The name of a tensor in a GGUF file."""
    # Longer names first: some begin with others.
    names = sorted(GGUF_NAMES.items(), key=lambda pair: -len(pair[0]))
    for old, new in [*names, ("model.layers", "blk")]:
        name = name.replace(old, new)
    return name


def gguf_file(name, path, dtype, layers):
    """Writes a GGUF file with matrices of `dtype`, of the first `layers` layers or all."""
    import gguf

    s = SHAPES[name]
    s = s | {"layers": min(layers or s["layers"], s["layers"])}
    output = dtype if dtype in ("bf16", "f16", "f32", "q8_0") else "q6_k"
    output_name = "model.embed_tokens.weight" if s.get("tied") else "lm_head.weight"
    writer = gguf.GGUFWriter(str(path), s.get("architecture", "llama"))
    writer.add_name(f"{name} random {dtype}")
    writer.add_context_length(s["context"])
    writer.add_embedding_length(s["d"])
    writer.add_block_count(s["layers"])
    writer.add_feed_forward_length(s["ff"])
    writer.add_head_count(s["heads"])
    writer.add_head_count_kv(s["kv_heads"])
    writer.add_rope_dimension_count(head_dim(s))
    writer.add_key_length(head_dim(s))
    writer.add_value_length(head_dim(s))
    if "experts" in s:
        writer.add_expert_count(s["experts"])
        writer.add_expert_used_count(s["experts_used"])
        writer.add_expert_feed_forward_length(s["expert_ff"])
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(s["vocab"])
    file_type = {"q4_k": "Q4_K_M", "q5_k": "Q5_K_M"}.get(dtype, dtype.upper())
    file_type = "ALL_F32" if dtype == "f32" else f"MOSTLY_{file_type}"
    writer.add_file_type(gguf.LlamaFileType[file_type])
    vocabulary(writer, s["vocab"])
    kinds = {}
    for tensor, shape in tensors(s):
        is_f32 = len(shape) == 1 or ".router." in tensor
        kinds[tensor] = "f32" if is_f32 else output if tensor == output_name else dtype
        kind = gguf.GGMLQuantizationType[kinds[tensor].upper()]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise SystemExit(f"{tensor} has rows of {shape[-1]}, {kinds[tensor]} blocks of {block}")
        bytes_shape = (*shape[:-1], shape[-1] // block * block_bytes)
        size = int(np.prod(bytes_shape))
        writer.add_tensor_info(gguf_name(tensor), bytes_shape, np.dtype(np.uint8), size, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng, total = np.random.default_rng(1), 0
    for tensor, shape in tensors(s):
        if len(shape) == 1:
            values = 1 + 0.1 * rng.standard_normal(shape, np.float32)
            data = values.astype(np.float32).view(np.uint8)
        elif ".router." in tensor:
            # Scores with a deviation of 1: experts are chosen by them, not by chance alone.
            data = matrix(rng, "f32", *shape, deviation=shape[-1] ** -0.5)
        else:
            data = matrix(rng, kinds[tensor], int(np.prod(shape[:-1])), shape[-1])
        writer.write_tensor_data(data)
        total += data.nbytes
    writer.close()
    print(f"{path}: {total / 1e9:.2f} GB, output projection in {output}")


def main():
    parser = argparse.ArgumentParser(description="Writes a checkpoint with random weights.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=pathlib.Path, help="a folder, or a file that ends in .gguf")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of a GGUF file's matrices")
    parser.add_argument("--layers", type=int, help="of a GGUF file; default: all")
    args = parser.parse_args()
    if args.out.suffix == ".gguf":
        gguf_file(args.shape, args.out, args.dtype, args.layers)
    elif args.dtype == "bf16" and "experts" not in SHAPES[args.shape] and not args.layers:
        safetensors(args.shape, args.out)
    else:
        parser.error("--dtype, --layers and experts go with a file that ends in .gguf")


if __name__ == "__main__":
    main()
