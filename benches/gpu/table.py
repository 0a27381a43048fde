"""Tables of a run's rows, with the peer's time where there is one.

    python3 benches/gpu/table.py OUT
"""

import json
import sys
from pathlib import Path


def read(folder):
    """The last row of each item that was ok, by slice and item."""
    files = [folder / "rows.jsonl", folder / "state" / "rows.jsonl"]
    rows = {}
    for file in filter(Path.exists, files):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row["status"] == "ok" and row.get("output"):
                rows[row["item"]] = row["output"]
    return rows


def peer_times(peers):
    """Best peer's time in us by (op, rows, context); context is None for what is not attention."""
    rows = [((row["op"], row["rows"], None), row) for row in peers.get("products", [])]
    rows += [((row["op"], row["tokens"], 0), row) for row in peers.get("prefill", [])]
    rows += [((row["op"], row["batch"], row["context"]), row) for row in peers.get("decode", [])]
    times = {}
    for key, row in rows:
        us = row["us"]["median"]
        times[key] = min(us, times.get(key, us))
    return times


def head(*names):
    print("\n| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names))


def line(*cells):
    print("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")


def number(value, decimals=1):
    return None if value is None else f"{value:.{decimals}f}"


def kernels(result, peers):
    print(
        f"\n{result['device']}: reads {result['read_gb_per_s']:.0f} GB/s,"
        f" mma.sync {result['mma_sync_tflop_per_s']:.0f},"
        f" matrix rate {result['matrix_tflop_per_s']:.0f} TFLOP/s"
    )
    head("op", "rows", "context", "kernel", "us", "forecast", "GB/s", "TFLOP/s", "share", "peer/ours")
    for row in result["rows"]:
        us, context = row["us"]["median"], row.get("context")
        peer = peers.get((row["op"], row["rows"], context))
        figures = [number(us), number(row["us"].get("forecast")), number(row["gb_per_s"], 0)]
        figures += [number(row["tflop_per_s"]), number(row["share"], 2)]
        ratio = peer and f"{peer / us:.2f}x"
        line(row["op"], row["rows"], context, row["kernel"], *figures, ratio)


def decode(rows):
    head("item", "batch", "step, us", "tokens/s", "share of the floor", "launch p50, us")
    for item, result in rows.items():
        for row in result["rows"]:
            figures = [number(row["step_us"]["median"]), number(row["tokens_per_s"], 0)]
            launch = number(row["launch_us"]["p50"])
            line(item, row["batch"], *figures, number(row["share_of_floor"], 3), launch)


def prefill(rows):
    head("item", "tokens", "tokens/s", "share of the matrix rate")
    for item, result in rows.items():
        for row in result["rows"]:
            rate, share = number(row["tokens_per_s"], 0), number(row["share_of_matrix_rate"], 3)
            line(item, row["tokens"], rate, share)


def overlap(rows):
    head("batch", "probe", "step, us", "added", "fresh", "slack p50, us", "overwritten")
    for result in rows.values():
        for row in result["rows"]:
            slack = (row.get("slack_us") or {}).get("p50")
            figures = [number(row["step_us"]["median"]), number(row["added"]["median"], 4)]
            figures += [number(row.get("fresh_share"), 3), number(slack)]
            line(row["batch"], row["probe"], *figures, row["overwritten_steps"])


def main():
    found = read(Path(sys.argv[1]))
    items = lambda start: {name: out[0] for name, out in found.items() if name.startswith(start)}
    peers = peer_times(items("peers kernels").get("peers kernels", {}))
    for start in ("products", "attention", "small"):
        for result in items(start).values():
            kernels(result, peers)
    for start, table in (("decode", decode), ("prefill", prefill), ("overlap", overlap)):
        if items(start):
            table(items(start))


if __name__ == "__main__":
    main()
