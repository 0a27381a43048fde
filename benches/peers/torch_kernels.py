"""Speed of PyTorch's kernels on this GPU: cuBLAS products and scaled-dot-product attention, in the
shapes of `bench kernels`.

    python benches/peers/torch_kernels.py > peers.json

Times are medians over CUDA-graph replays, operands rotated beyond L2. FlashInfer's paged decode is
measured beside it where it is installed.
"""
import json
import statistics
import sys

import torch

D, FF, HEADS, KV_HEADS, HD, VOCAB = 4096, 14336, 32, 8, 128, 128256
PRODUCTS = {
    "qkv": ((HEADS + 2 * KV_HEADS) * HD, D),
    "o": (D, HEADS * HD),
    "gate_up": (2 * FF, D),
    "down": (D, FF),
    "lm_head": (VOCAB, D),
}
L2 = 64 << 20


def microseconds(launches, repeats=15):
    """Median and best time of one launch; `launches` are called one after the other in one
    graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()
        times = []
        for _ in range(repeats + 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / len(launches))
    return {"median": statistics.median(times[2:]), "best": min(times[2:])}


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 16


def matmul_rate(n=8192):
    """cuBLAS's rate on a large square product, TFLOP/s."""
    a, b = random(n, n), random(n, n)
    out = torch.empty(n, n, device="cuda", dtype=torch.bfloat16)
    return 2 * n**3 / microseconds([lambda: torch.mm(a, b, out=out)] * 4)["median"] / 1e6


def products():
    rows = []
    for op, (features, width) in PRODUCTS.items():
        copies = max(1, -(-4 * L2 // (features * width * 2)))
        weights = [random(features, width) for _ in range(copies)]
        for m in [1, 2, 4, 8, 16, 32, 64, 128, 256, 2048, 4096, 8192]:
            if op == "lm_head" and m > 256:
                continue
            x, out = random(m, width), torch.empty(m, features, device="cuda", dtype=torch.bfloat16)
            launches = [
                lambda w=weights[i % copies]: torch.mm(x, w.t(), out=out)
                for i in range(max(copies, 8))
            ]
            rows.append({"op": op, "rows": m, "us": microseconds(launches)})
        del weights
    return rows


def prefill():
    """Causal attention over n tokens, each backend that works; the best counts."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    rows = []
    for n in [1024, 4096, 8192]:
        q, k, v = random(1, HEADS, n, HD), random(1, KV_HEADS, n, HD), random(1, KV_HEADS, n, HD)
        for backend in [
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
        ]:
            def launch():
                with sdpa_kernel(backend):
                    torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=True
                    )
            try:
                rows.append(
                    {
                        "op": "attention_prefill",
                        "tokens": n,
                        "backend": backend.name,
                        "us": microseconds([launch] * 4),
                    }
                )
            except RuntimeError as error:
                print(f"{backend.name} at {n}: {str(error).splitlines()[0]}", file=sys.stderr)
    return rows


def decode():
    """FlashInfer's tensor-core paged decode, page 16."""
    try:
        import flashinfer
    except ImportError:
        return []
    rows = []
    for batch, context in [(1, 4096), (1, 32768), (8, 8192), (32, 4096), (64, 1024), (256, 1024)]:
        pages = batch * context // 16
        copies = max(1, -(-4 * L2 // (pages * 2 * 16 * KV_HEADS * HD * 2)))
        caches = [random(pages, 2, 16, KV_HEADS, HD) for _ in range(copies)]
        q = random(batch, HEADS, HD)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True)
        steps = torch.arange(batch + 1, dtype=torch.int32) * (context // 16)
        wrapper.plan(
            steps.cuda(),
            torch.randperm(pages, dtype=torch.int32).cuda(),
            torch.full((batch,), 16, dtype=torch.int32).cuda(),
            HEADS,
            KV_HEADS,
            HD,
            16,
            q_data_type=torch.bfloat16,
        )
        out = torch.empty_like(q)
        rows.append(
            {
                "op": "attention_decode",
                "batch": batch,
                "context": context,
                "peer": f"flashinfer {flashinfer.__version__}",
                "us": microseconds(
                    [
                        lambda cache=caches[i % copies]: wrapper.run(q, cache, out=out)
                        for i in range(max(copies, 4))
                    ]
                ),
            }
        )
        del caches
    return rows


def main():
    torch.manual_seed(1)
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "matmul_tflop_per_s": matmul_rate(),
                "products": products(),
                "prefill": prefill(),
                "decode": decode(),
            }
        )
    )


if __name__ == "__main__":
    main()
