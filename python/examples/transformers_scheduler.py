"""The scheduler before Hugging Face transformers: `generate`, token by token, in its order.

    python transformers_scheduler.py MODEL [REQUESTS]

MODEL is a name of the hub, a folder, or a GGUF file. Requests of two kinds arrive faster than they
are answered: short questions, and long stories. The lengths of each kind are learned from answers
that have ended; the scheduler runs first the request that is expected to need least. Prints the
mean latency of first come, first served and of TRAIL, and checks that the answers are the same.
Time is that of the processor, which other programs do not change; pauses are skipped.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from trail_rt import Scheduler

MAX_RUNNING = 2
QUESTIONS = ["Is ice cold?", "Is a cat an animal?", "Is the sky green?"]
STORIES = ["a brave mouse", "a lost key", "the old bridge", "a boat in the storm"]


@dataclass
class Request:
    """A prompt, and its answer so far."""

    kind: str
    prompt: list[int]
    max_tokens: int
    arrival: float
    tokens: list[int] = field(default_factory=list)
    cache: Any = None
    latency: float = 0.0


def workload(tokenizer: Any, count: int, interval: float) -> list[Request]:
    """One story after three questions."""
    requests = []
    for number in range(count):
        if number % 4 == 0:
            kind, text, max_tokens = "story", f"Tell a story about {STORIES[number % 16 // 4]}.", 64
        else:
            kind, text, max_tokens = "question", f"{QUESTIONS[number % 4 - 1]} Say yes or no.", 6
        turns = [{"role": "user", "content": text}]
        chat = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(chat, add_special_tokens=False)["input_ids"]
        requests.append(Request(kind, prompt, max_tokens, number * interval))
    return requests


class Lengths:
    """Mean length of the answers that have ended, by kind; at first the most that is allowed."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)

    def of(self, request: Request) -> float:
        seen = self.seen[request.kind]
        return sum(seen) / len(seen) if seen else float(request.max_tokens)


def next_token(model: Any, request: Request) -> int:
    """One token by `generate`, which computes what the cache does not have."""
    tokens = torch.tensor([request.prompt + request.tokens])
    request.cache = request.cache or DynamicCache(config=model.config)
    output = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        past_key_values=request.cache,
        max_new_tokens=1,
        do_sample=False,
        pad_token_id=0,
    )
    return int(output[0, -1])


def serve(model: Any, requests: list[Request], policy: str, eos: set[int]) -> float:
    """Mean latency of the requests under a policy, seconds."""
    # A prompt is computed in one step, as `generate` does. Steps are long: a request may give way
    # after a few.
    scheduler = Scheduler(policy, max_running=MAX_RUNNING, token_budget=4096, min_run_tokens=4)
    lengths, arrived = Lengths(), 0
    live: dict[int, Request] = {}
    begin = time.process_time()
    while arrived < len(requests) or live:
        now = time.process_time() - begin
        if not live and requests[arrived].arrival > now:
            begin -= requests[arrived].arrival - now
            now = requests[arrived].arrival
        while arrived < len(requests) and requests[arrived].arrival <= now:
            new = requests[arrived]
            number = scheduler.submit(
                len(new.prompt),
                new.max_tokens,
                arrival=new.arrival,
                predicted_length=lengths.of(new),
            )
            live[number] = new
            arrived += 1
        plan = scheduler.plan(now)
        for number in plan.evicted:
            live[number].cache = None
        sampled = [row.request for row in plan.rows if row.sample]
        for number in sampled:
            live[number].tokens.append(next_token(model, live[number]))
        scheduler.advance()
        now = time.process_time() - begin
        for number in sampled:
            request = live[number]
            if len(request.tokens) == request.max_tokens or request.tokens[-1] in eos:
                request.latency = now - request.arrival
                request.cache = None
                lengths.seen[request.kind].append(len(request.tokens))
                scheduler.finish(number)
                del live[number]
    return sum(request.latency for request in requests) / len(requests)


def load(path: str) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    if path.endswith(".gguf"):
        folder, file = str(Path(path).parent), {"gguf_file": Path(path).name}
    else:
        folder, file = path, {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **file)
    return model.eval(), AutoTokenizer.from_pretrained(folder, **file)


def main() -> None:
    model, tokenizer = load(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 24
    ends = model.generation_config.eos_token_id
    eos = set(ends if isinstance(ends, list) else [ends])
    # The time of a token says how fast requests must arrive to queue.
    probe = Request("question", tokenizer("One two three")["input_ids"], 8, 0.0)
    with torch.inference_mode():
        next_token(model, probe)
        begin = time.process_time()
        for _ in range(8):
            probe.tokens.append(next_token(model, probe))
        token_s = (time.process_time() - begin) / 8
        print(f"{token_s * 1e3:.0f} ms a token; {count} requests")
        answers, means = [], []
        for policy in ("fcfs", "trail"):
            requests = workload(tokenizer, count, interval=12 * token_s)
            means.append(serve(model, requests, policy, eos))
            answers.append([request.tokens for request in requests])
            tokens = sum(len(answer) for answer in answers[-1])
            print(f"{policy:<12} mean latency {means[-1]:.2f} s, {tokens} tokens")
    assert answers[0] == answers[1], "the order of requests changed an answer"
    print(f"the same answers; {means[0] / means[1]:.2f}x below first come, first served")


if __name__ == "__main__":
    main()
