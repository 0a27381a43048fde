"""Gaps of a running stream while the server takes a long prompt, and while it takes large bodies.

    python benches/server_bounds.py --model MODEL [--program PATH] [--rounds 3]

Needs Python alone. Starts `trail-rt --model MODEL` on a free port of the loopback interface, three
times a round, and streams one answer of --tokens tokens each time:
- alone;
- with a prompt of --prompt-words words sent after the 20th token (prefill beside a decode);
- with --bodies bodies of 4 MB in parallel after the 20th token: half prompts that cannot fit, half
  JSON of unknown fields.
Prints one JSON object: for each case the median and the longest gap between two tokens, ms, as the
median of the rounds with its range, and how much the server's resident memory grew at most, MB.
"""
import argparse
import http.client
import json
import socket
import statistics
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Server:
    def __init__(self, args):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [args.program, "--model", args.model, "--port", str(self.port)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **quiet)
        for _ in range(600):
            try:
                if self.get("/health") == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the server did not start")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        return connection.getresponse().status

    def post(self, body, timeout=600):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        return connection.getresponse()

    def resident_mb(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1e3

    def end(self):
        self.process.terminate()
        self.process.wait(60)


def stream(server, args, disturb):
    """Times of the tokens after the 20th, and what `disturb` did meanwhile."""
    body = {"prompt": "Once upon a time", "max_tokens": args.tokens, "temperature": 0,
            "ignore_eos": True, "stream": True}
    answer = server.post(json.dumps(body))
    times, threads = [], []
    for line in answer:
        if line.startswith(b"data: {") and b'"text"' in line:
            times.append(time.perf_counter())
            if len(times) == 20:
                threads = [threading.Thread(target=job) for job in disturb]
                for thread in threads:
                    thread.start()
    for thread in threads:
        thread.join()
    return times[20:]


def round_of(args, case):
    server = Server(args)
    answers, peak = [], [0.0]
    try:
        start = server.resident_mb()

        def send(body):
            response = server.post(body)
            response.read()
            answers.append(response.status)

        long = json.dumps({"prompt": "word " * args.prompt_words, "max_tokens": 1})
        text = json.dumps({"prompt": "1" * 4_000_000})
        fields = '{"prompt":"x","max_tokens":1,"zz":[' + ",".join(['{"":0}'] * 570_000) + "]}"
        jobs = {"alone": [], "long_prompt": [lambda: send(long)],
                "bodies": [lambda i=i: send([text, fields][i % 2]) for i in range(args.bodies)]}
        done = threading.Event()

        def watch():
            while not done.wait(0.02):
                peak[0] = max(peak[0], server.resident_mb() - start)

        watcher = threading.Thread(target=watch)
        watcher.start()
        times = stream(server, args, jobs[case])
        done.set()
        watcher.join()
    finally:
        server.end()
    gaps = [(b - a) * 1e3 for a, b in zip(times, times[1:])]
    return {"median_gap_ms": statistics.median(gaps), "longest_gap_ms": max(gaps),
            "grown_mb": peak[0], "status": sorted(set(answers))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--program", default=str(ROOT / "target/release/trail-rt"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--prompt-words", type=int, default=7000)
    parser.add_argument("--bodies", type=int, default=16)
    args = parser.parse_args()
    cases = ["alone", "long_prompt", "bodies"]
    rounds = [{case: round_of(args, case) for case in cases} for _ in range(args.rounds)]
    report = {}
    for case in cases:
        report[case] = {"status": rounds[0][case]["status"]}
        for key in ["median_gap_ms", "longest_gap_ms", "grown_mb"]:
            values = sorted(one[case][key] for one in rounds)
            median, low, high = statistics.median(values), values[0], values[-1]
            median, low, high = (round(value, 1) for value in (median, low, high))
            report[case][key] = {"median": median, "range": [low, high]}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
