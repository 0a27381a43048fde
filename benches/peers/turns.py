"""Time to the first token of a chat's turns, on servers with OpenAI's API, interleaved.

    python3 turns.py --rounds 3 --turns 6 trail=http://127.0.0.1:8001 llama=http://127.0.0.1:8002

Each round is a new conversation of the same texts on every server, one after the other: a first
user message of about --history tokens, then short ones. Prints one JSON object: per server and turn
the median over the rounds of the seconds to the first token, and the cached tokens where the server
says their number.
"""

import argparse
import json
import statistics
import time
import urllib.request

WORDS = (
    "the scheduler orders requests by the tokens that remain and a probe reads an activation while "
    "upper layers run so a short answer does not wait behind a long one unless its time has come"
).split()


def text(count, seed):
    """`count` words, about as many tokens."""
    return " ".join(WORDS[(seed * 7 + at * at + at * seed) % len(WORDS)] for at in range(count))


def ask(url, messages, max_tokens):
    """Returns the answer, the seconds to its first token, and the usage."""
    body = {
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        url + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begin, first, parts, usage = time.perf_counter(), None, [], {}
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content")
                if piece:
                    first = first or time.perf_counter() - begin
                    parts.append(piece)
    return "".join(parts), first, usage


def converse(url, seed, args):
    """Seconds to the first token, prompt tokens and cached tokens of each turn."""
    messages, turns = [], []
    for turn in range(args.turns):
        words = args.history if turn == 0 else args.new
        messages.append({"role": "user", "content": text(words, seed + turn)})
        answer, first, usage = ask(url, messages, args.answer)
        messages.append({"role": "assistant", "content": answer})
        details = usage.get("prompt_tokens_details") or {}
        turns.append((first, usage.get("prompt_tokens"), details.get("cached_tokens")))
    return turns


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--history", type=int, default=1500)
    parser.add_argument("--new", type=int, default=30)
    parser.add_argument("--answer", type=int, default=40)
    args = parser.parse_args()
    servers = dict(server.split("=", 1) for server in args.servers)
    runs = {name: [] for name in servers}
    for number in range(args.rounds):
        for name, url in servers.items():
            runs[name].append(converse(url, 100 * number + 1, args))
    result = {}
    for name, rounds in runs.items():
        result[name] = [
            {
                "ttft_s": statistics.median(first for first, _, _ in turn),
                "prompt_tokens": turn[0][1],
                "cached_tokens": turn[0][2],
            }
            for turn in zip(*rounds)
        ]
    print(json.dumps(result))


main()
