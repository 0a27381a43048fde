"""Whole steps of Llama-3-8B's shape in PyTorch, random weights: what `bench decode`, `prefill`,
`load` and `swap` are held against.

    python benches/peers/torch_step.py decode --context 1024 --batch 1,16 > peer_decode.json
    python benches/peers/torch_step.py prefill --tokens 2048,8192
    python benches/peers/torch_step.py transfers

decode: cuBLAS products, scaled-dot-product attention over a static cache (grouped heads), the rest
compiled by torch.compile where it works; one CUDA graph a step. That is the device's half of an
engine, without any host cost. transfers: safetensors' load_file to the device, and KV blocks
gathered layer by layer with index_select and taken to the host with .cpu(). `--tiny` runs a small
shape, on the CPU too, to see that the script itself works.
"""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch
import torch.nn.functional as F

SHAPES = {
    "llama3-8b": dict(layers=32, d=4096, ff=14336, heads=32, kv_heads=8, hd=128, vocab=128256),
    "tiny": dict(layers=2, d=64, ff=96, heads=4, kv_heads=2, hd=16, vocab=250),
}
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def draw(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * 0.02


class Model:
    def __init__(self, shape):
        self.s = s = SHAPES[shape]
        q, kv = s["heads"] * s["hd"], s["kv_heads"] * s["hd"]
        self.embed, self.lm_head = draw(s["vocab"], s["d"]), draw(s["vocab"], s["d"])
        self.layers = [
            dict(
                qkv=draw(q + 2 * kv, s["d"]),
                o=draw(s["d"], q),
                gate_up=draw(2 * s["ff"], s["d"]),
                down=draw(s["d"], s["ff"]),
                norm1=1 + draw(s["d"]),
                norm2=1 + draw(s["d"]),
            )
            for _ in range(s["layers"])
        ]
        self.norm = 1 + draw(s["d"])
        turns = 500000.0 ** (-torch.arange(0, s["hd"], 2, device=DEVICE) / s["hd"])
        angles = torch.arange(16384, device=DEVICE)[:, None] * turns
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotate(self, x, positions):
        """x [batch, heads, tokens, hd] at positions [tokens]."""
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return (x * self.cos[positions] + turned * self.sin[positions]).to(x.dtype)

    def block(self, layer, x, cache, positions):
        """x [batch, tokens, d]; cache (k, v), each [batch, kv heads, context, hd], written at
        positions [tokens]."""
        s, (batch, tokens, _) = self.s, x.shape
        q_size, kv_size = s["heads"] * s["hd"], s["kv_heads"] * s["hd"]
        qkv = F.rms_norm(x, (s["d"],), layer["norm1"], 1e-5) @ layer["qkv"].t()
        q, k, v = (
            part.view(batch, tokens, -1, s["hd"]).transpose(1, 2)
            for part in qkv.split([q_size, kv_size, kv_size], -1)
        )
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        keys, values = cache
        keys.index_copy_(2, positions, k)
        values.index_copy_(2, positions, v)
        # A decode step attends to the whole static cache; a prompt to itself.
        attended = F.scaled_dot_product_attention(
            q, keys, values, is_causal=tokens > 1, enable_gqa=True
        )
        x = x + attended.transpose(1, 2).reshape(batch, tokens, q_size) @ layer["o"].t()
        gate, up = (F.rms_norm(x, (s["d"],), layer["norm2"], 1e-5) @ layer["gate_up"].t()).chunk(
            2, -1
        )
        return x + (F.silu(gate) * up) @ layer["down"].t()

    def step(self, tokens, caches, positions):
        """tokens [batch, tokens]; the next token of each row [batch]."""
        x = self.embed[tokens]
        for layer, cache in zip(self.layers, caches):
            x = self.block(layer, x, cache, positions)
        x = F.rms_norm(x[:, -1], (self.s["d"],), self.norm, 1e-5)
        return (x @ self.lm_head.t()).argmax(-1)

    def caches(self, batch, context):
        shape = (batch, self.s["kv_heads"], context, self.s["hd"])
        return [(draw(*shape), draw(*shape)) for _ in self.layers]


def replayed(run, repeats):
    """Median milliseconds of `run`, from a CUDA graph where there is a GPU."""
    if not ON_GPU:
        run()
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) * 1e3
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            run()
        times = []
        for _ in range(repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


@torch.inference_mode()
def decode(args, model):
    rows = []
    for batch in args.batch:
        caches = model.caches(batch, args.context)
        tokens = torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
        positions = torch.tensor([args.context - 1], device=DEVICE)
        row = {
            "batch": batch,
            "graph_ms": replayed(lambda: model.step(tokens, caches, positions), args.repeats),
        }
        if ON_GPU and batch in args.compiled:
            compiled = torch.compile(model.step, mode="max-autotune-no-cudagraphs", dynamic=False)
            row["compiled_graph_ms"] = replayed(
                lambda: compiled(tokens, caches, positions), args.repeats
            )
        rows.append(row)
    return {"context": args.context, "rows": rows}


@torch.inference_mode()
def prefill(args, model):
    rows = []
    for count in args.tokens:
        caches = model.caches(1, count)
        tokens = torch.zeros(1, count, dtype=torch.long, device=DEVICE)
        positions = torch.arange(count, device=DEVICE)
        rows.append(
            {
                "tokens": count,
                "graph_ms": replayed(lambda: model.step(tokens, caches, positions), args.repeats),
            }
        )
    return {"rows": rows}


def seconds(run):
    if ON_GPU:
        torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - begin


@torch.inference_mode()
def transfers(args, model):
    from safetensors.torch import load_file, save_file

    tensors = {
        f"layer{i}.{name}": value.cpu()
        for i, layer in enumerate(model.layers)
        for name, value in layer.items()
    }
    total = sum(tensor.numel() * 2 for tensor in tensors.values())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_file(tensors, path)
        load = statistics.median(seconds(lambda: load_file(path, device=DEVICE)) for _ in range(3))
    s = model.s
    pool = [draw(args.pool_blocks, 2, s["kv_heads"], 16, s["hd"]) for _ in range(s["layers"])]
    chosen = torch.randperm(args.pool_blocks, device=DEVICE)[: args.blocks]
    swap = statistics.median(
        seconds(lambda: [layer.index_select(0, chosen).cpu() for layer in pool])
        for _ in range(args.repeats)
    )
    moved = args.blocks * pool[0][0].numel() * 2 * s["layers"]
    return {
        "load_file_gb_per_s": total / load / 1e9,
        "load_bytes": total,
        "index_select_cpu_gb_per_s": moved / swap / 1e9,
        "swap_bytes": moved,
    }


def main():
    parser = argparse.ArgumentParser()
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser.add_argument("what", choices=["decode", "prefill", "transfers"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=numbers, default=[1, 16, 32, 64, 128, 256])
    parser.add_argument(
        "--compiled",
        type=numbers,
        default=[1],
        help="batch sizes that torch.compile takes part in: it takes minutes each",
    )
    parser.add_argument("--tokens", type=numbers, default=[2048, 4096, 8192])
    parser.add_argument("--blocks", type=int, default=512)
    parser.add_argument("--pool-blocks", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    torch.manual_seed(1)
    shape = "tiny" if args.tiny else "llama3-8b"
    found = {"decode": decode, "prefill": prefill, "transfers": transfers}[args.what](
        args, Model(shape)
    )
    device = torch.cuda.get_device_name() if ON_GPU else "cpu: figures mean nothing"
    print(json.dumps({"device": device, "torch": torch.__version__, "shape": shape, **found}))


if __name__ == "__main__":
    main()
