#!/usr/bin/env python3
"""Policies on recorded answers, with the spread that comes from which answers there were.

    trail-rt probe eval --model M --probe P --data HELD --traces TRACES.jsonl
    benches/policies_by_answers.py TRACES.jsonl --step-constants fixed=5000000,... > record.json

Draws the answers with replacement, simulates each draw on `trail-rt simulate --step-model measured`
without the tail bound and with it, and prints FCFS's mean latency over each policy's, the second
policy's gain over the first's in the same draw, and its p99 over FCFS's: the 5 % quantile, the
median and the 95 % quantile over the draws.
"""

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile


def simulate(args, traces, bounded, policies, options):
    """Rows of `trail-rt simulate --json`."""
    command = [args.program, "simulate", "--trace", traces, "--step-model", "measured", "--json"]
    command += ["--step-constants", args.step_constants, "--max-running", str(args.max_running)]
    command += ["--load", args.load, "--seeds", args.seeds]
    command += ["--policies", ",".join(policies)]
    command += shlex.split(options) + ([] if bounded else ["--tail-bound", "0"])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["runs"]


def all_runs(args, traces, bounded, policies):
    """Rows of FCFS and of all policies; the second one has --own as well."""
    first, second, *others = policies
    runs = simulate(args, traces, bounded, ["fcfs", first, *others], args.options)
    own = simulate(args, traces, bounded, ["fcfs", second], f"{args.options} {args.own}")
    return runs + [run for run in own if run["policy"].split(":")[0] != "fcfs"]


def ratios(runs, policies):
    """By load: figures of one draw, means over its arrival seeds."""
    loads = {}
    for run in runs:
        loads.setdefault(run["load"], {}).setdefault(run["policy"].split(":")[0], []).append(run)
    mean = lambda runs, key: sum(run["latency_s"][key] for run in runs) / len(runs)
    for load, by_policy in loads.items():
        gains = {
            name: mean(by_policy["fcfs"], "mean") / mean(by_policy[name], "mean")
            for name in policies
        }
        first, second = policies[:2]
        gains[f"{second}_over_{first}"] = gains[second] / gains[first]
        gains["p99_over_fcfs"] = mean(by_policy[second], "p99") / mean(by_policy["fcfs"], "p99")
        yield load, gains


def quantiles(values):
    """The 5 % quantile, the median and the 95 % quantile."""
    values = sorted(values)
    at = lambda share: values[round(share * (len(values) - 1))]
    return [round(at(share), 3) for share in (0.05, 0.5, 0.95)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", help="file of `trail-rt probe eval --traces`")
    parser.add_argument("--program", default="trail-rt", help="trail-rt")
    parser.add_argument("--step-constants", required=True, help="as of `trail-rt simulate`")
    parser.add_argument("--max-running", type=int, default=8, help="sequences in a step")
    parser.add_argument("--load", default="0.9,1.1,1.5,2.0,burst", help="loads")
    parser.add_argument("--seeds", default="1,2", help="seeds of the arrivals")
    parser.add_argument("--policies", default="sjf,trail,oracle", help="beside fcfs, in order")
    parser.add_argument("--options", default="", help="more options of `trail-rt simulate`")
    parser.add_argument("--own", default="", help="more options, of the second policy alone")
    parser.add_argument("--draws", type=int, default=40, help="draws of the answers")
    args = parser.parse_args()
    with open(args.traces, encoding="utf-8") as lines:
        answers = [json.loads(line) for line in lines]
    policies = args.policies.split(",")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        drawn = os.path.join(folder, "drawn.jsonl")
        for draw in range(args.draws):
            chance = random.Random(draw)
            rows = [dict(chance.choice(answers), id=row) for row in range(len(answers))]
            with open(drawn, "w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            for bounded in (False, True):
                for load, gains in ratios(all_runs(args, drawn, bounded, policies), policies):
                    for name, gain in gains.items():
                        found.setdefault((load, bounded), {}).setdefault(name, []).append(gain)
            print(f"draw {draw + 1} of {args.draws}", file=sys.stderr)
    rows = [
        {"load": load if load == "burst" else float(load), "bounded": bounded}
        | {name: quantiles(of) for name, of in gains.items()}
        for (load, bounded), gains in sorted(found.items(), key=lambda item: item[0][::-1])
    ]
    longest = max(answer["output_tokens"] for answer in answers)
    cut = sum(answer["output_tokens"] == longest for answer in answers)
    json.dump({"answers": len(answers), "cut": cut, "rows": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
