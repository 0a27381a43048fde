#!/usr/bin/env python3
"""Streams of the demo model that are killed at a random token end with the same text as
undisturbed, and with the same usage: python3 tests/same_text.py [TRIALS]

Two real workers; the one that holds the stream is killed, and another one started. A third of the
trials has penalties of what was generated, another third stop strings and a temperature of 0.
"""

import json
import random
import sys
import time

from cluster import MODEL, Cluster, kill

PARAMETERS = (
    {"temperature": 1.0},
    {"temperature": 0.8, "presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"temperature": 0.0, "stop": ["\n\n\n", "zq"]},
)


def trial(cluster, rng, prompt, parameters):
    """Returns None if the stream ended before the kill, else whether the text is the same."""
    request = {"prompt": prompt["prompt"], "seed": prompt["seed"], "max_tokens": 300,
               "chat": True, "ignore_eos": "stop" not in parameters, **parameters}
    undisturbed = cluster.ask(**request)
    assert undisturbed.finish and undisturbed.prompt_tokens and not undisturbed.error, undisturbed
    at = rng.randrange(1, max(2, len(undisturbed.text) // 2))
    killed = []

    def on_text(answer):
        if len(answer.text) >= at and not killed:
            victim = cluster.holder()
            if victim:
                killed.append(victim)
                kill(victim)

    before = cluster.migrations()
    disturbed = cluster.ask(on_text=on_text, **request)
    moved = cluster.migrations() - before
    for victim in killed:
        victim.wait()
        cluster.workers.remove(victim)
        cluster.add_workers(1, ["--threads", 1], engine="real")
    if not moved:
        return None
    ends = [(one.text, one.finish, one.tokens, one.prompt_tokens)
            for one in (disturbed, undisturbed)]
    same = ends[0] == ends[1]
    if not same:
        print(f"  killed at {at}: {disturbed}\n  not {undisturbed}")
    return same


def main():
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    rng = random.Random(11)
    prompts = [json.loads(line) for line in (MODEL / "prompts.jsonl").read_text().splitlines()]
    begin, same, moved = time.monotonic(), 0, 0
    with Cluster() as cluster:
        cluster.add_workers(2, ["--threads", 1], engine="real")
        for attempt in range(4 * trials):
            result = trial(cluster, rng, rng.choice(prompts), PARAMETERS[attempt % 3])
            moved, same = moved + (result is not None), same + (result is True)
            if moved == trials:
                break
    print(f"{same} of {moved} moved streams end with the same text, "
          f"{time.monotonic() - begin:.0f} s")
    sys.exit(0 if same == moved == trials else 1)


if __name__ == "__main__":
    main()
