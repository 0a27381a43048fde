"""The cost of the binding, beside the same calls in Rust.

    python bench.py [--threads N]

Measures a call of the scheduler with 64 running requests, and the engine's rate with 8 answers at
once, in turns with the program `bench` of this folder, which cargo builds. Exits with 1 where the
binding costs more than its bounds: 2 us a call, 20 us a plan with its rows read, 3 % of the rate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from trail_rt import LLM, SamplingParams, Scheduler

RUNNING = 64
STEPS = 400
ROUNDS = 5
FOLDER = Path(__file__).parent


def rust(*arguments: str) -> dict[str, float]:
    """A line of the program in Rust."""
    program = FOLDER / "target" / "release" / "bench"
    out = subprocess.run([program, *arguments], check=True, stdout=subprocess.PIPE).stdout
    result: dict[str, float] = json.loads(out)
    return result


def scheduler() -> dict[str, float]:
    """Microseconds of a call."""
    scheduler = Scheduler("trail:0.8", max_running=RUNNING, token_budget=4096, num_blocks=1 << 16)
    clock = time.perf_counter
    begin = clock()
    requests = [scheduler.submit(16, 4096, predicted_length=1000.0) for _ in range(RUNNING)]
    submit = clock() - begin
    plan = advance = predict = 0.0
    for step in range(STEPS):
        begin = clock()
        rows = scheduler.plan(step * 1e-3).rows
        plan += clock() - begin
        assert len(rows) == RUNNING
        begin = clock()
        scheduler.advance()
        advance += clock() - begin
        begin = clock()
        for request in requests:
            scheduler.predict(request, 900.0)
        predict += clock() - begin
    return {
        "submit": submit * 1e6 / RUNNING,
        "plan": plan * 1e6 / STEPS,
        "advance": advance * 1e6 / STEPS,
        "predict": predict * 1e6 / STEPS / RUNNING,
    }


def engine(threads: int) -> float:
    """Tokens per second, the best of some rounds."""
    llm = LLM(threads=threads)
    prompts = ["Once upon a time"] * 8
    best = 0.0
    for number in range(6):
        params = [SamplingParams(seed=seed, max_tokens=STEPS, ignore_eos=True) for seed in range(8)]
        begin = time.perf_counter()
        outputs = llm.generate(prompts, params)
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        rate = tokens / (time.perf_counter() - begin)
        # The first round warms up.
        best = max(best, rate) if number else 0.0
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    cargo = ["cargo", "build", "--release", "--locked", "--bin", "bench"]
    subprocess.run(cargo, check=True, cwd=FOLDER)
    least: dict[tuple[str, str], float] = {}
    for _ in range(ROUNDS):
        for side, costs in (("python", scheduler()), ("rust", rust("scheduler"))):
            for name, cost in costs.items():
                key = (name, side)
                least[key] = min(cost, least.get(key, cost))
    failed = False
    print(f"{'us a call':<12} {'Python':>8} {'Rust':>8} {'binding':>8} {'bound':>8}")
    for name, bound in (("submit", 2.0), ("predict", 2.0), ("advance", 2.0), ("plan", 20.0)):
        python, native = least[name, "python"], least[name, "rust"]
        failed |= python - native > bound
        print(f"{name:<12} {python:>8.2f} {native:>8.2f} {python - native:>8.2f} {bound:>8.0f}")
    rates = [(engine(threads), rust("engine", str(threads))["tokens_per_s"]) for _ in range(ROUNDS)]
    python, native = (max(rate) for rate in zip(*rates))
    share = python / native
    failed |= share < 0.97
    print(f"{'tokens/s':<12} {python:>8.0f} {native:>8.0f} {share:>7.1%}     >97%")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
