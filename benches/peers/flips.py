"""Answers that change with what a server did before, on servers with OpenAI's API.

    python3 flips.py --text FILE trail=http://127.0.0.1:8001 llama=http://127.0.0.1:8002

Greedy completions of passages of FILE. Each is asked after an unrelated one (so that a server which
keeps the context of its last request finds nothing), then again at once, then after its first
half, then together with three others. Prints one JSON object: per server and case the answers, how
many have other tokens than the first one, and how many other tokens or log-probabilities.
"""

import argparse
import concurrent.futures
import json
import random
import urllib.request

CASES = ("again", "after its first half", "with three others")


def complete(url, prompt, tokens):
    """Returns the tokens of a greedy answer and their log-probabilities."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1}
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        logprobs = json.load(response)["choices"][0]["logprobs"]
    return logprobs["tokens"], logprobs["token_logprobs"]


def answers(url, case, prompt, others, tokens):
    if case == "after its first half":
        complete(url, others[0], 1)
        complete(url, prompt[: len(prompt) // 2], 1)
    if case == "with three others":
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(complete, url, text, tokens) for text in [prompt, *others]]
            return asked[0].result()
    return complete(url, prompt, tokens)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--text", required=True)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--characters", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=48)
    args = parser.parse_args()
    draw = random.Random(1)
    with open(args.text, encoding="utf-8") as file:
        text = file.read()

    def passage():
        first = draw.randrange(len(text) - args.characters)
        return text[first : first + args.characters]

    prompts = [passage() for _ in range(args.prompts)]
    others = [[passage()[:200] for _ in range(3)] for _ in prompts]
    result = {}
    for name, url in (server.split("=", 1) for server in args.servers):
        counts = {case: {"answers": 0, "tokens": 0, "logprobs": 0} for case in CASES}
        for prompt, three in zip(prompts, others):
            complete(url, three[0], 1)
            first = complete(url, prompt, args.tokens)
            for case in CASES:
                found = answers(url, case, prompt, three, args.tokens)
                counts[case]["answers"] += 1
                counts[case]["tokens"] += found[0] != first[0]
                counts[case]["logprobs"] += found != first
        result[name] = counts
    print(json.dumps(result))


main()
