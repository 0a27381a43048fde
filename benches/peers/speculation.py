"""Tokens a second with drafts from the prompt over those without, on servers in turn.

    python3 speculation.py trail=http://127.0.0.1:8001,http://127.0.0.1:8002 \\
        llama=http://127.0.0.1:8003,http://127.0.0.1:8004 openvino=MODEL.gguf

The prompts are those of `trail-rt bench speculation`: edits, quotations, tables as JSON, free text.
Each is a greedy chat, asked of the first server of a pair, which drafts nothing, and of the second,
one request at a time. `NAME=FILE` is OpenVINO GenAI in this process, plain and with prompt lookup.
Prints one JSON object: per server and kind of prompt the tokens a second of both and their ratio,
the seconds of the prompts included.
"""

import argparse
import collections
import json
import pathlib
import time
import urllib.request

PROMPTS = pathlib.Path(__file__).parent.parent / "src" / "speculation" / "prompts.jsonl"


class Server:
    """A server with OpenAI's API."""

    def __init__(self, url):
        self.url = url

    def chat(self, prompt, tokens):
        """Returns the number of output tokens."""
        message = {"role": "user", "content": prompt}
        body = {"messages": [message], "max_tokens": tokens, "temperature": 0}
        request = urllib.request.Request(
            self.url + "/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)["usage"]["completion_tokens"]


class OpenVino:
    """OpenVINO GenAI in this process."""

    def __init__(self, model, looks_up, threads):
        import openvino_genai

        options = {"prompt_lookup": True} if looks_up else {}
        options["INFERENCE_NUM_THREADS"] = threads
        self.pipe = openvino_genai.LLMPipeline(model, "CPU", **options)
        self.config = openvino_genai.GenerationConfig()
        self.config.do_sample = False
        if looks_up:
            self.config.num_assistant_tokens, self.config.max_ngram_size = 5, 3

    def chat(self, prompt, tokens):
        """Returns the number of output tokens."""
        self.config.max_new_tokens = tokens
        result = self.pipe.generate([prompt], self.config)
        return result.perf_metrics.get_num_generated_tokens()


def pair(text, threads):
    """The plain server of `text`, and the one that drafts."""
    if text.startswith("http"):
        return [Server(url) for url in text.split(",")]
    return [OpenVino(text, looks_up, threads) for looks_up in (False, True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL,URL or NAME=FILE")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--of-kind", type=int, default=10, help="prompts of each kind")
    args = parser.parse_args()
    pairs = dict(server.split("=", 1) for server in args.servers)
    pairs = {name: pair(text, args.threads) for name, text in pairs.items()}
    kinds = collections.defaultdict(list)
    for line in PROMPTS.read_text().splitlines():
        one = json.loads(line)
        kinds[one["kind"]].append(one["prompt"])
    for servers in pairs.values():
        for server in servers:
            server.chat("Say yes.", 4)
    report = {name: {} for name in pairs}
    for kind, prompts in kinds.items():
        sums = {name: [[0, 0.0], [0, 0.0]] for name in pairs}
        for prompt in prompts[: args.of_kind]:
            for name, servers in pairs.items():
                for server, of in zip(servers, sums[name]):
                    begin = time.monotonic()
                    of[0] += server.chat(prompt, args.tokens)
                    of[1] += time.monotonic() - begin
        for name, both in sums.items():
            off, on = (round(tokens / seconds, 1) for tokens, seconds in both)
            counts = [tokens for tokens, _ in both]
            figures = {"off_tokens_per_s": off, "tokens_per_s": on, "ratio": round(on / off, 2)}
            report[name][kind] = {**figures, "tokens": counts}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
