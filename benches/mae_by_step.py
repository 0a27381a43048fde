#!/usr/bin/env python3
"""Mean absolute error of predictions by the step at which they are made (ELIS, figure 2b).

    trail-rt probe eval --traces TRACES.jsonl
    benches/mae_by_step.py TRACES.jsonl [--window 50]

At every window's first token: the remaining tokens predicted there against the true ones, over the
answers that are that long, and over those that ended before the longest.
"""

import argparse
import json


def error(trace, step):
    return abs(trace["remaining"][step] - (trace["output_tokens"] - step))


def column(traces, step):
    """Mean error at `step`, and the number of answers; a dash without one."""
    errors = [error(trace, step) for trace in traces if len(trace["remaining"]) > step]
    return f"{sum(errors) / len(errors):.1f} ({len(errors)})" if errors else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", help="file of `trail-rt probe eval --traces`")
    parser.add_argument("--window", type=int, default=50, help="tokens between two predictions")
    args = parser.parse_args()
    with open(args.traces, encoding="utf-8") as lines:
        traces = [json.loads(line) for line in lines]
    longest = max(trace["output_tokens"] for trace in traces)
    ended = [trace for trace in traces if trace["output_tokens"] < longest]
    print("| step | all answers | ended by themselves |\n|---|---|---|")
    for step in range(0, longest, args.window):
        print(f"| {step} | {column(traces, step)} | {column(ended, step)} |")


if __name__ == "__main__":
    main()
