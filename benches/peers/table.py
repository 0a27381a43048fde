"""A short table of one `bench kernels` result, with the peer's time where there is one.

    python benches/peers/table.py skinny.json [peers.json]
"""
import json
import os
import sys


def main():
    with open(sys.argv[1]) as f:
        result = json.load(f)
    peers = {}
    if len(sys.argv) > 2 and os.path.exists(sys.argv[2]):
        with open(sys.argv[2]) as f:
            peers = {(row["op"], row["rows"]): row["us"]["median"] for row in json.load(f)["products"]}
    print(f"\n{result['device']}: reads {result['read_gb_per_s']:.0f} GB/s, mma.sync {result['mma_sync_tflop_per_s']:.0f}, "
          f"matrix rate {result['matrix_tflop_per_s']:.0f} TFLOP/s")
    print("| op | rows | kernel | us | GB/s | TFLOP/s | share of the limit | peer / ours |")
    print("|---|---|---|---|---|---|---|---|")
    for row in result["rows"]:
        us = row["us"]["median"]
        peer = peers.get((row["op"], row["rows"]))
        ratio = f"{peer / us:.2f}x" if peer else ""
        print(f"| {row['op']} | {row['rows']} | {row['kernel']} | {us:.1f} | {row['gb_per_s']:.0f} | {row['tflop_per_s']:.1f} | {row['share']:.2f} | {ratio} |")


if __name__ == "__main__":
    main()
