#!/usr/bin/env python3
"""Prefix caches: workers publish their KV events, routers send requests where their blocks are.

    python3 tests/prefix.py            all cases
    python3 tests/prefix.py CASE ...   some

Simulated workers, which share prefixes by the scheduler's own blocks. The workers' reports say what
was found.
"""

import random
import re
import sys
import time

from cluster import Cluster, instance, kill, wait_until

BLOCK = 16
WORKERS = 3


def prompt_of(seed, tokens=200):
    """A prompt as token ids; those of two seeds share no block."""
    rng = random.Random(seed)
    return [rng.randrange(100, 1000) for _ in range(tokens)]


def reusable(prompt):
    """Tokens of a prompt that a worker can find: full blocks, and never the last token."""
    return (len(prompt) - 1) // BLOCK * BLOCK


def add_workers(cluster, count=WORKERS, options=()):
    """Workers of 20 ms a step, and 0.2 ms a prompt token."""
    cluster.add_workers(count, ["--step-cost", cluster.step_costs(20, 0.2), *options])


def prompts(cluster):
    """Prompt tokens by worker: all, and those found in its cache."""
    return {load["worker_id"]: (load["prompts"]["tokens"], load["prompts"]["cached"])
            for load in cluster.loads()}


def ask(cluster, prompt, max_tokens=4):
    """Asks while nothing else is asked. Returns the worker that answered, and the tokens that it
    found in its cache."""
    before = prompts(cluster)
    answer = cluster.ask(prompt, max_tokens)
    assert answer.finish == "length" and not answer.error, answer

    def changed():
        after = prompts(cluster)
        return [worker for worker in after if after[worker] != before.get(worker)]

    wait_until("a worker reports the prompt", changed)
    time.sleep(0.2)
    [worker] = changed()
    tokens, cached = prompts(cluster)[worker]
    assert tokens - before.get(worker, (0, 0))[0] == len(prompt), (tokens, before)
    return worker, cached - before.get(worker, (0, 0))[1]


def turns(options, engine="sim"):
    """Ten prompts at once, which spread over the workers, then a longer one after each. Returns the
    number of the latter that went where their beginning was, and of workers that had some."""
    with Cluster(options) as cluster:
        if engine == "sim":
            add_workers(cluster)
        else:
            cluster.add_workers(2, ["--threads", 1, "--max-running", 4], engine=engine)
        firsts = [prompt_of(f"{options} {at}") for at in range(10)]
        idle = prompts(cluster)
        for answer in cluster.ask_all([{"prompt": one, "max_tokens": 30} for one in firsts])():
            assert answer.finish == "length", answer
        wait_until("the workers report all prompts", lambda: sum(
            tokens - idle[one][0] for one, (tokens, _) in prompts(cluster).items()) == 10 * 200)
        time.sleep(0.2)
        homes = [one for one, (tokens, _) in prompts(cluster).items() if tokens > idle[one][0]]
        found = [ask(cluster, one + prompt_of("turn", 40))[1] for one in firsts]
        assert all(tokens in (0, 192) for tokens in found), found
        return sum(tokens > 0 for tokens in found), len(homes)


def hits():
    """Turns go where the turn before was, under our rule and Dynamo's; by chance under others."""
    for options in (["--policy", "predicted-wait"], ["--policy", "kv"]):
        hit, homes = turns(options)
        print(f"  {options[1]}: {hit} of 10 turns, over {homes} workers")
        assert hit == 10 and homes > 1
    for options in (["--policy", "round-robin"], ["--ignore-caches"]):
        hit, _ = turns(options)
        print(f"  {' '.join(options)}: {hit} of 10 turns")
        assert hit < 10


def busy():
    """A turn does not wait for its blocks longer than computing them takes."""
    with Cluster() as cluster:
        add_workers(cluster, 2, ["--max-running", 1])
        prompt = prompt_of("busy")
        first, _ = ask(cluster, prompt)
        # The worker that has the blocks gets a job that is shorter than the next.
        finish = cluster.ask_all([{"prompt": prompt, "max_tokens": 100}])
        wait_until("it runs", lambda: any(load["running"] for load in cluster.loads()))
        [running] = [load["worker_id"] for load in cluster.loads() if load["running"]]
        assert running == first
        answer = cluster.ask(prompt, 150)
        assert answer.finish == "length" and answer.first < 1.0, answer
        finish()
        print(f"  the first token of the other worker after {answer.first:.2f} s")


def death():
    """The blocks of a worker that dies are forgotten; the next turn fills another's cache."""
    with Cluster() as cluster:
        add_workers(cluster)
        prompt = prompt_of("death")
        first, _ = ask(cluster, prompt)
        assert ask(cluster, prompt) == (first, reusable(prompt))
        [victim] = [one for one in cluster.workers if instance(one) == first]
        kill(victim)
        answer = cluster.ask(prompt, 4)
        assert answer.finish == "length", answer
        wait_until("its reports end", lambda: first not in prompts(cluster))
        second, found = ask(cluster, prompt)
        assert second != first and found == reusable(prompt), (second, found)
        print(f"  killed; the next turn was computed again, the one after found {found} tokens")


def believed(cluster):
    """Blocks that the router counted for its last choice, by its log."""
    counts = re.findall(r"effective_cached_blocks=([0-9.]+)", cluster.router.log.read_text())
    return float(counts[-1])


def eviction():
    """The router knows at each request what the worker has, which gives its blocks to others."""
    with Cluster() as cluster:
        # Five of eight prompts fill the worker.
        add_workers(cluster, 1, ["--kv-blocks", 64])
        rng, hits = random.Random(1), []
        for _ in range(40):
            tokens = rng.choice((56, 120, 200))
            _, found = ask(cluster, prompt_of(f"eviction {rng.randrange(8)}")[:tokens])
            assert believed(cluster) * BLOCK == found, (believed(cluster), found)
            hits.append(found)
        print(f"  40 requests, {sum(tokens > 0 for tokens in hits)} found something: as believed")
        assert 0 < hits.count(0) < 35 and len(set(hits)) > 3, hits


def late_router():
    """A router that starts later asks the workers for their blocks."""
    with Cluster() as cluster:
        add_workers(cluster)
        turns = [prompt_of(f"late {at}") for at in range(4)]
        homes = [ask(cluster, prompt)[0] for prompt in turns]
        cluster.router = cluster.start("trail-dynamo-router", ["--http", "127.0.0.1:0"])
        cluster.port = 0
        wait_until("the second router serves", cluster.find_port)
        wait_until("it hears of all workers", cluster.all_report)
        wait_until("it has the model", lambda: "m" in cluster.models())
        wait_until("it serves", lambda: cluster.ask("x", 1).finish == "length")
        for prompt, home in zip(turns, homes):
            assert ask(cluster, prompt) == (home, reusable(prompt))
        print("  4 prompts where their blocks are, by a router that heard of no event")


def real():
    """The same with the bundled model, whose times are measured."""
    hit, homes = turns([], "real")
    print(f"  {hit} of 10 turns, over {homes} workers")
    assert hit == 10 and homes > 1


CASES = {"hits": hits, "busy": busy, "death": death, "eviction": eviction,
         "late-router": late_router, "real": real}


def main():
    for name in sys.argv[1:] or CASES:
        print(f"{name}: {CASES[name].__doc__}")
        CASES[name]()


if __name__ == "__main__":
    main()
