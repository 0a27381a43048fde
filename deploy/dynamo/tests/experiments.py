#!/usr/bin/env python3
"""Experiments with processes on loopback; each prints a table.

    python3 tests/experiments.py routing             policies by load, three seeds
    python3 tests/experiments.py routing --real      the same with 2 workers on the demo model
    python3 tests/experiments.py turns               policies on conversations of several turns
    python3 tests/experiments.py scaling [WORKERS ...]   peak rate by workers (ELIS, figure 7)

Simulated workers: 4 slots, a step of 50 ms. Lengths: 85 % uniform in 10..40 tokens, 15 % in
100..200. Predictions of prompts: the length times exp(normal(0, 0.4)), the same for router and
worker; refined ones err as the bundled probe's.

Conversations: system prompts of 96 tokens in three families, 20..60 new tokens a turn after the
answer before, five turns, or as many as the model's context of 1,024 holds, a pause of 2 s in the
mean between two. A prompt token takes 2 ms. KV for 512 blocks a worker.
"""

import argparse
import contextlib
import json
import math
import random
import statistics
import threading
import time

from cluster import ALPHABET, MODEL, Cluster

SLOTS = 4
STEP_MS = 50
POLICIES = ("round-robin", "least-loaded", "least-work", "predicted-wait")
PREFILL_MS = 2
TURN_POLICIES = ("round-robin", "kv", "predicted-wait --ignore-caches", "predicted-wait")


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
        steps = cluster.step_costs(STEP_MS)
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
        for policy in args.policies.split(",") if args.policies else POLICIES:
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


def alphabet():
    """The tokens of simulated answers, by position."""
    vocabulary = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    return [vocabulary[letter] for letter in ALPHABET]


def conversation(cluster, seed, letters):
    """One user's turns, one after the other. Returns the answers."""
    rng = random.Random(seed)
    family = rng.randrange(3)
    history = [100 + (family * 300 + at * 7) % 900 for at in range(96)]
    answers = []
    for turn in range(5):
        history += [rng.randrange(100, 1000) for _ in range(rng.randint(20, 60))]
        tokens = length(rng)
        if len(history) + tokens > 1024:
            break
        expected = max(1, round(tokens * math.exp(rng.gauss(0, 0.4))))
        if turn > 0:
            time.sleep(rng.expovariate(1 / 2))
        answers.append(cluster.ask(history, tokens, timeout=600,
                                   nvext={"agent_hints": {"osl": expected}}))
        assert answers[-1].tokens == tokens and not answers[-1].error, answers[-1]
        history += [letters[(len(history) + at) % len(letters)] for at in range(tokens)]
    return answers


def converse(cluster, conversations, rate, seed):
    """Conversations that begin by a Poisson process. Returns all answers."""
    rng, due, letters = random.Random(seed), 0.0, alphabet()
    answers = [None] * conversations

    def one(at):
        answers[at] = conversation(cluster, 1000 * seed + at, letters)

    begin, threads = time.monotonic(), []
    for at in range(conversations):
        due += rng.expovariate(rate)
        time.sleep(max(0.0, begin + due - time.monotonic()))
        threads.append(threading.Thread(target=one, args=(at,)))
        threads[-1].start()
    for thread in threads:
        thread.join(600)
    return [answer for turns in answers for answer in turns]


def hit_rate(cluster):
    """Share of the prompt tokens that the workers found in their caches."""
    time.sleep(0.3)
    prompts = [load["prompts"] for load in cluster.loads()]
    return sum(one["cached"] for one in prompts) / sum(one["tokens"] for one in prompts)


def turns_run(policy, workers, conversations, rate, seed):
    """Figures of one run: of latency and time to the first token, and the percentage found."""
    with Cluster(["--policy", *policy.split()]) as cluster:
        options = ["--max-running", SLOTS, "--noise", "demo", "--kv-blocks", 512,
                   "--step-cost", cluster.step_costs(STEP_MS, PREFILL_MS)]
        cluster.add_workers(workers, options)
        answers = converse(cluster, conversations, rate, seed)
        hits = hit_rate(cluster)
    ends, firsts = [one.end for one in answers], [one.first for one in answers]
    return statistics.mean(ends), p99(ends), statistics.mean(firsts), p99(firsts), 100 * hits


def turns(args):
    workers, seeds = args.workers or 6, [int(seed) for seed in args.seeds.split(",")]
    policies = args.policies.split(",") if args.policies else TURN_POLICIES
    print(f"{workers} workers x {SLOTS} slots; {args.requests} conversations a run; mean (least to "
          f"most) of {len(seeds)} seeds")
    print("| conversations/s | policy | mean latency, s | p99 latency, s | mean TTFT, s "
          "| p99 TTFT, s | found in caches, % |\n|---|---|---|---|---|---|---|")
    for rate in map(float, args.rates.split(",")):
        # In turn, so that other work on the machine falls on all.
        rows = {policy: [] for policy in policies}
        for seed in seeds:
            for policy in policies:
                rows[policy].append(turns_run(policy, workers, args.requests, rate, seed))
        for policy in policies:
            cells = [f"{statistics.mean(column):.2f} ({min(column):.2f} to {max(column):.2f})"
                     for column in zip(*rows[policy])]
            print(f"| {rate} | {policy} | {' | '.join(cells)} |", flush=True)


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
    parser.add_argument("experiment", choices=("routing", "turns", "scaling"))
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--loads", default="0.7,0.95,1.1")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--rates", default="1.0", help="turns: conversations that begin in 1 s")
    parser.add_argument("--policies", help="by default those of the experiment, separated by commas")
    args = parser.parse_args()
    if args.experiment == "scaling":
        scaling(args.sizes or [1, 2, 4, 10, 20, 50])
    elif args.experiment == "turns":
        turns(args)
    else:
        routing(args)


if __name__ == "__main__":
    main()
