"""A short table of one `bench kernels` result, with the peer's time where there is one.

    python benches/peers/table.py skinny.json [peers.json]
"""
import json
import os
import sys


def peer_times(path):
    """Best peer's time in us by (op, rows, context); context is None for what is not attention."""
    with open(path) as f:
        peers = json.load(f)
    rows = [((row["op"], row["rows"], None), row) for row in peers.get("products", [])]
    rows += [((row["op"], row["tokens"], 0), row) for row in peers.get("prefill", [])]
    rows += [((row["op"], row["batch"], row["context"]), row) for row in peers.get("decode", [])]
    times = {}
    for key, row in rows:
        us = row["us"]["median"]
        times[key] = min(us, times.get(key, us))
    return times


def main():
    with open(sys.argv[1]) as f:
        result = json.load(f)
    peers = peer_times(sys.argv[2]) if len(sys.argv) > 2 and os.path.exists(sys.argv[2]) else {}
    print(
        f"\n{result['device']}: reads {result['read_gb_per_s']:.0f} GB/s, mma.sync {result['mma_sync_tflop_per_s']:.0f}, "
        f"matrix rate {result['matrix_tflop_per_s']:.0f} TFLOP/s"
    )
    print(
        "| op | rows | context | kernel | us | GB/s | TFLOP/s | share of the limit | peer / ours |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        us, context = row["us"]["median"], row.get("context")
        peer = peers.get((row["op"], row["rows"], context))
        ratio = f"{peer / us:.2f}x" if peer else ""
        print(
            f"| {row['op']} | {row['rows']} | {'' if context is None else context} | {row['kernel']} | {us:.1f} | {row['gb_per_s']:.0f} | "
            f"{row['tflop_per_s']:.1f} | {row['share']:.2f} | {ratio} |"
        )


if __name__ == "__main__":
    main()
