#!/usr/bin/env python3
"""Experiments with processes on loopback; each prints a table.

    python3 tests/experiments.py routing             policies by load, three seeds
    python3 tests/experiments.py routing --real      the same with 2 workers on the demo model
    python3 tests/experiments.py scaling [WORKERS ...]   peak rate by workers (ELIS, figure 7)

Simulated workers: 4 slots, a step of 50 ms. Lengths: 85 % uniform in 10..40 tokens, 15 % in
100..200. Predictions of prompts: the length times exp(normal(0, 0.4)), the same for router and
worker; refined ones err as the bundled probe's.
"""

import argparse
import contextlib
import json
import math
import random
import statistics
import threading
import time

from cluster import MODEL, Cluster
from failover import slow_steps

SLOTS = 4
STEP_MS = 50
POLICIES = ("round-robin", "least-loaded", "least-work", "predicted-wait")


def length(rng):
    return rng.randint(10, 40) if rng.random() < 0.85 else rng.randint(100, 200)


MEAN_LENGTH = 0.85 * 25 + 0.15 * 150


def simulated(count, seed):
    """Requests of known length, with a noisy prediction of it."""
    rng = random.Random(seed)
    made = []
    for at in range(count):
        tokens = length(rng)
        expected = max(1, round(tokens * math.exp(rng.gauss(0, 0.4))))
        hint = {"agent_hints": {"osl": expected}}
        made.append({"prompt": "x" * (1 + at % 40), "max_tokens": tokens, "nvext": hint})
    return made


def bundled(count, seed):
    """Bundled prompts, answered to their own end."""
    prompts = [json.loads(line) for line in (MODEL / "prompts.jsonl").read_text().splitlines()]
    chosen = random.Random(seed).sample(prompts, count)
    return [{"prompt": one["prompt"], "seed": one["seed"], "max_tokens": 400, "chat": True,
             "ignore_eos": False} for one in chosen]


def run(cluster, asked, rate, seed):
    """Sends `asked` by a Poisson process. Returns the answers; each must be complete."""
    answers = [None] * len(asked)
    rng, due = random.Random(seed), 0.0

    def one(at, request):
        answers[at] = cluster.ask(timeout=600, **request)

    begin = time.monotonic()
    threads = []
    for at, request in enumerate(asked):
        due += rng.expovariate(rate)
        time.sleep(max(0.0, begin + due - time.monotonic()))
        threads.append(threading.Thread(target=one, args=(at, request)))
        threads[-1].start()
    for thread in threads:
        thread.join(600)
    for answer, request in zip(answers, asked):
        assert answer.finish and not answer.error, answer
        assert answer.tokens == request["max_tokens"] or answer.finish == "stop", answer
    return answers


def p99(values):
    values = sorted(values)
    return values[min(len(values) - 1, math.ceil(0.99 * len(values)) - 1)]


@contextlib.contextmanager
def simulated_cluster(policy, workers):
    with Cluster(["--policy", policy]) as cluster:
        steps = slow_steps(cluster, STEP_MS)
        options = ["--max-running", SLOTS, "--step-cost", steps, "--noise", "demo"]
        cluster.add_workers(workers, options)
        yield cluster


@contextlib.contextmanager
def real_cluster(policy, workers):
    with Cluster(["--policy", policy, "--predict-with", MODEL]) as cluster:
        cluster.add_workers(workers, ["--max-running", SLOTS, "--threads", 1], engine="real")
        yield cluster


def real_capacity(workers, count):
    """Requests/s of a burst on the demo model."""
    with real_cluster("least-loaded", workers) as cluster:
        begin = time.monotonic()
        run(cluster, bundled(count, 0), 1e6, 0)
        return count / (time.monotonic() - begin)


def routing(args):
    loads = [float(load) for load in args.loads.split(",")]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    workers = args.workers or (2 if args.real else 6)
    if args.real:
        cluster_of, requests = real_cluster, bundled
        capacity = real_capacity(workers, args.requests)
    else:
        cluster_of, requests = simulated_cluster, simulated
        capacity = workers * SLOTS * 1000 / STEP_MS / MEAN_LENGTH
    print(f"{workers} workers x {SLOTS} slots, {capacity:.1f} requests/s; "
          f"{args.requests} requests a run; mean (least to most) of {len(seeds)} seeds")
    print("| load | policy | mean latency, s | p99 latency, s | mean TTFT, s | p99 TTFT, s |\n"
          "|---|---|---|---|---|---|")
    for load in loads:
        for policy in args.policies.split(","):
            rows = []
            for seed in seeds:
                with cluster_of(policy, workers) as cluster:
                    answers = run(cluster, requests(args.requests, seed), load * capacity, seed)
                latencies = [answer.end for answer in answers]
                firsts = [answer.first for answer in answers]
                rows.append((statistics.mean(latencies), p99(latencies),
                             statistics.mean(firsts), p99(firsts)))
            cells = [f"{statistics.mean(column):.2f} ({min(column):.2f} to {max(column):.2f})"
                     for column in zip(*rows)]
            print(f"| {load} | {policy} | {' | '.join(cells)} |", flush=True)


def scaling(sizes):
    """The highest rate at which requests are queued 0.5 s in the mean, preemptions included."""
    print("| workers | peak rate, requests/s | per worker | mean wait there, s |\n|---|---|---|---|")
    for workers in sizes:
        with simulated_cluster("predicted-wait", workers) as cluster:
            capacity = workers * SLOTS * 1000 / STEP_MS / MEAN_LENGTH
            peak, wait = 0.0, 0.0
            for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
                rate = share * capacity
                answers = run(cluster, simulated(max(40, round(20 * rate)), workers), rate, workers)
                queued = [answer.end - answer.tokens * STEP_MS / 1000 for answer in answers]
                if statistics.mean(queued) > 0.5:
                    break
                peak, wait = rate, statistics.mean(queued)
        print(f"| {workers} | {peak:.2f} | {peak / workers:.2f} | {wait:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("routing", "scaling"))
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--loads", default="0.7,0.95,1.1")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--policies", default=",".join(POLICIES))
    args = parser.parse_args()
    if args.experiment == "scaling":
        scaling(args.sizes or [1, 2, 4, 10, 20, 50])
    else:
        routing(args)


if __name__ == "__main__":
    main()
