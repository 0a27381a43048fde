"""How often the estimated times of a server's answers hold, by the clock of a client.

    trail-rt serve --model FILE --max-running 8
    python3 eta_coverage.py --prompts PROMPTS.jsonl --rates 1.2,1.8 --requests 300

Chats arrive at random times at each rate (requests a second) in turn, as streams with
`"trail": {"progress": true}`. An estimate is that of the first chunk that has one and at least 1,
16 and 64 tokens; it holds if the last token comes within its interval of 80 %. Prints one JSON
object: by rate the number of answers and of those that failed, the mean latency, and by tokens the
number of estimates, the share that held and the median of the interval's width over the time that
was left.
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import threading
import time
from urllib.parse import urlparse

AGES = [1, 16, 64]


def answer(args, prompt, seed):
    """Asks, and returns the seconds to the last token, None of a failure, and the estimates by age
    with their times."""
    at = urlparse(args.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=3600)
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": args.max_tokens,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "trail": {"progress": True},
    }
    headers = {"content-type": "application/json"}
    begin, end, estimates = time.monotonic(), None, {}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        now, chunk = time.monotonic() - begin, json.loads(line[6:])
        if "choices" not in chunk:
            return None, {}
        interval = (chunk.get("trail") or {}).get("eta_interval_ms")
        tokens = (chunk.get("usage") or {}).get("completion_tokens", 0)
        if any(choice.get("finish_reason") for choice in chunk["choices"]):
            end = now
        elif interval:
            age = max((age for age in AGES if age <= tokens), default=None)
            estimates.setdefault(age, (now, interval))
    return end, estimates


def run(args, prompts, rate, seed):
    """The figures at a rate."""
    draw, answers, threads, due = random.Random(seed), [], [], time.monotonic()
    for index in range(args.requests):
        prompt = prompts[draw.randrange(len(prompts))]
        ask = lambda prompt=prompt, index=index: answers.append(answer(args, prompt, index))
        due += draw.expovariate(rate)
        time.sleep(max(0, due - time.monotonic()))
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    for thread in threads:
        thread.join()
    answers = [(end, estimates) for end, estimates in answers if end is not None]
    ages = {}
    for age in AGES:
        found = [(end, *estimates[age]) for end, estimates in answers if age in estimates]
        left = [(1e3 * (end - now), low, high) for end, now, (low, high) in found]
        held = [low <= ms <= high for ms, low, high in left]
        if held:
            width = statistics.median((high - low) / max(ms, 1) for ms, low, high in left)
            share = statistics.fmean(held)
            ages[age] = {"estimates": len(held), "held": share, "relative_width": width}
    mean = statistics.fmean(end for end, _ in answers)
    failed = args.requests - len(answers)
    counts = {"rate": rate, "answers": len(answers), "failed": failed}
    return {**counts, "latency_mean_s": mean, "ages": ages}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("--rates", default="1")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    lines = args.prompts.read_text().splitlines()
    prompts = [json.loads(line)["prompt"] for line in lines]
    rates = [float(rate) for rate in args.rates.split(",")]
    print(json.dumps([run(args, prompts, rate, seed) for seed, rate in enumerate(rates)]))


if __name__ == "__main__":
    main()
