"""Tables of a run's rows, with the peer's figure where there is one.

    python3 benches/gpu/table.py FOLDER      # OUT, the state folder, or OUT/all.tgz unpacked
"""

import sys
from pathlib import Path

from report import read


def found(folder):
    """Outputs by device and item; a later row of an item replaces an earlier one."""
    outputs = {}
    for row in read(folder / "rows.jsonl"):
        if row.get("output"):
            outputs.setdefault(row.get("device"), {})[row["item"]] = row["output"][0]
    return outputs


def rows(items, start):
    """The rows of all items whose names begin so, each with its item and the item's output."""
    for item, output in items.items():
        if item.startswith(start):
            yield from ((item, output, row) for row in output["rows"])


def peer_times(items):
    """Best peer's time of a kernel in us by (op, rows, context); None for what has no context."""
    peers, times = items.get("peers kernels", {}), {}
    keyed = [((row["op"], row["rows"], None), row) for row in peers.get("products", [])]
    keyed += [((row["op"], row["tokens"], 0), row) for row in peers.get("prefill", [])]
    keyed += [((row["op"], row["batch"], row["context"]), row) for row in peers.get("decode", [])]
    for key, row in keyed:
        us = row["us"]["median"]
        times[key] = min(us, times.get(key, us))
    return times


def peer_steps(items, what, key):
    """PyTorch's time of a step in us, by batch or tokens."""
    peers = items.get(f"peers {what}", {"rows": []})["rows"]
    return {row[key]: row["graph_ms"] * 1e3 for row in peers}


def table(heads, lines):
    lines = list(lines)
    if lines:
        print("\n| " + " | ".join(heads) + " |\n" + "|" + "---|" * len(heads))
    for line in lines:
        print("| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |")


def number(value, decimals=1):
    return None if value is None else f"{value:.{decimals}f}"


def ratio(peer, ours):
    return f"{peer / ours:.2f}x" if peer and ours else None


def kernels(items):
    peers = peer_times(items)
    for start in ("products", "attention", "small"):
        for item, output, row in rows(items, start):
            context = row.get("context")
            head = [row["op"], row["rows"], context]
            if "error" in row:
                yield [*head, row["error"]]
                continue
            us = row["us"]["median"]
            figures = [number(us), number(row["us"].get("forecast")), number(row["gb_per_s"], 0)]
            figures += [number(row["tflop_per_s"]), number(row["share"], 2)]
            figures += [number(output["matrix_tflop_per_s"], 0)]
            grid = "x".join(map(str, row.get("grid", [])))
            yield [*head, row["kernel"], grid, row.get("splits"), *figures, ratio(peers.get(tuple(head)), us)]


def decode(items):
    peers = peer_steps(items, "decode", "batch")
    for item, output, row in rows(items, "decode"):
        us = row["step_us"]["median"]
        figures = [number(us), number(row["tokens_per_s"], 0), number(row["share_of_floor"], 3)]
        figures += [number(row["launch_us"]["p50"]), number(output["limits"]["matrix_tflops"], 0)]
        yield [item, *figures, ratio(peers.get(row["batch"]), us)]


def prefill(items):
    peers = peer_steps(items, "prefill", "tokens")
    for item, output, row in rows(items, "prefill"):
        us = row["tokens"] / row["tokens_per_s"] * 1e6
        figures = [number(row["tokens_per_s"], 0), number(row["share_of_matrix_rate"], 3)]
        figures += [number(output["limits"]["matrix_tflops"], 0)]
        yield [item, *figures, ratio(peers.get(row["tokens"]), us)]


def overlap(items):
    for item, _, row in rows(items, "overlap"):
        slack = (row.get("slack_us") or {}).get("p50")
        figures = [number(row["step_us"]["median"]), number(row["added"]["median"], 4)]
        figures += [number(row.get("fresh_share"), 3), number(slack), row["overwritten_steps"]]
        yield [row["batch"], row["probe"], *figures]


def others(items):
    """Items whose output is one object, as it is."""
    for name in ("swap", "load", "serve", "peers transfers"):
        if name in items:
            yield [name, ", ".join(f"{key} {value}" for key, value in items[name].items())]


def main():
    for device, items in found(Path(sys.argv[1])).items():
        print(f"\n{device}")
        kernel = ["op", "rows", "context", "kernel", "grid", "splits", "us", "forecast", "GB/s"]
        table([*kernel, "TFLOP/s", "share", "matrix TFLOP/s", "peer/ours"], kernels(items))
        step = ["step, us", "tokens/s", "share of the floor", "launch p50, us"]
        table(["item", *step, "matrix TFLOP/s", "peer/ours"], decode(items))
        prompt = ["tokens/s", "share of the matrix rate", "matrix TFLOP/s", "peer/ours"]
        table(["item", *prompt], prefill(items))
        probe = ["step, us", "added", "fresh", "slack p50, us", "overwritten"]
        table(["batch", "probe", *probe], overlap(items))
        table(["item", "output"], others(items))


if __name__ == "__main__":
    main()
