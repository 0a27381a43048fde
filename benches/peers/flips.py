"""Answers that change with what a server did before, or beside.

    python3 flips.py --text FILE trail=http://127.0.0.1:8001,http://127.0.0.1:8002 \\
        llama=http://127.0.0.1:8003,http://127.0.0.1:8004 openvino=MODEL.gguf

Greedy completions of passages of FILE. Each is asked after an unrelated one (so that a server which
keeps the context of its last request finds nothing), then again at once, after its first half,
together with three others, and of a second server, which speculates. `NAME=FILE` is OpenVINO
GenAI's continuous batching in this process, with prefix caching, and with prompt lookup as the
second. Prints a JSON object for each server: per case the answers, how many have other tokens than
the first one, and how many other tokens or log-probabilities; and the seconds that all took.
"""

import argparse
import concurrent.futures
import json
import random
import time
import urllib.request

CASES = ("again", "after its first half", "with three others", "speculation")


class Server:
    """A server with OpenAI's API."""

    def __init__(self, url):
        self.url = url

    def ask(self, prompts, tokens):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, tokens), prompts))

    def complete(self, prompt, tokens):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1}
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            logprobs = json.load(response)["choices"][0]["logprobs"]
        return logprobs["tokens"], logprobs["token_logprobs"]


class OpenVino:
    """OpenVINO GenAI's continuous batching."""

    def __init__(self, model, looks_up):
        import openvino_genai

        self.genai = openvino_genai
        self.looks_up = looks_up
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = 1
        options = {"prompt_lookup": True} if looks_up else {}
        self.pipe = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self.asked = 0

    def ask(self, prompts, tokens):
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.logprobs = tokens, False, 1
        config.apply_chat_template = False
        if self.looks_up:
            config.num_assistant_tokens, config.max_ngram_size = 5, 3
        first, self.asked = self.asked, self.asked + len(prompts)
        add = self.pipe.add_request
        handles = [add(first + at, text, config) for at, text in enumerate(prompts)]
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
        answers = [handle.read_all()[0] for handle in handles]
        return [(list(one.generated_ids), list(one.generated_log_probs)) for one in answers]


def open_servers(text):
    """Returns the server of `text`, and the one that speculates, or None."""
    if not text.startswith("http"):
        return OpenVino(text, False), OpenVino(text, True)
    urls = [Server(url) for url in text.split(",")]
    return urls[0], urls[1] if len(urls) > 1 else None


def answer(servers, case, prompt, others, tokens):
    server, second = servers
    if case == "after its first half":
        server.ask([others[0]], 1)
        server.ask([prompt[: len(prompt) // 2]], 1)
    if case == "with three others":
        server.ask([others[0]], 1)
        return server.ask([prompt, *others], tokens)[0]
    if case == "speculation":
        return second.ask([prompt], tokens)[0]
    return server.ask([prompt], tokens)[0]


def flips(servers, prompts, others, tokens):
    cases = [case for case in CASES if servers[1] or case != "speculation"]
    counts = {case: {"answers": 0, "tokens": 0, "logprobs": 0} for case in cases}
    begin = time.monotonic()
    for prompt, three in zip(prompts, others):
        servers[0].ask([three[0]], 1)
        first = servers[0].ask([prompt], tokens)[0]
        for case in cases:
            found = answer(servers, case, prompt, three, tokens)
            counts[case]["answers"] += 1
            counts[case]["tokens"] += found[0] != first[0]
            counts[case]["logprobs"] += found != first
    return {**counts, "seconds": round(time.monotonic() - begin, 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", nargs="+", metavar="NAME=URL[,URL] or NAME=FILE")
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
    for name, where in (server.split("=", 1) for server in args.servers):
        counts = flips(open_servers(where), prompts, others, args.tokens)
        print(json.dumps({name: counts}), flush=True)


main()
