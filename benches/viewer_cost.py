"""CPU time that a viewer of `/v1/trail/live` costs a server, by the server's threads.

    cargo build --release
    python3 viewer_cost.py --program target/release/trail-rt --requests 500 --rounds 3

Keeps so many requests to the bundled model open, and measures windows without and with a viewer in
turn (Linux: /proc). Prints one JSON object: per kind of window the frames a second, and the shares
of a core of the engine's thread, of the thread that watches it, of HTTP's, and of threads that have
ended (those that compare policies), each by window; and the engine's CPU time per output token. The
server is ended by its id.
"""

import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time
from urllib.parse import urlparse

TICKS = os.sysconf("SC_CLK_TCK")


# By the name of a thread; the engine computes with one.
KINDS = {
    "trail-engine": "engine",
    "trail-live": "live",
    "trail-http": "http",
    "trail-what-if": "ended",
}


def cpu_seconds(stat):
    """CPU seconds of a process, those of its ended threads too, or of a thread."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def thread_seconds(pid):
    """CPU seconds by kind of thread."""
    process = pathlib.Path(f"/proc/{pid}")
    seconds = dict.fromkeys(["engine", "live", "http", "other"], 0.0)
    for task in (process / "task").iterdir():
        try:
            kind = KINDS.get((task / "comm").read_text().strip(), "other")
            if kind != "ended":
                seconds[kind] += cpu_seconds(task / "stat")
        except OSError:
            continue
    seconds["ended"] = cpu_seconds(process / "stat") - sum(seconds.values())
    if not seconds["engine"] > 0 or not seconds["http"] > 0:
        raise SystemExit(f"the server's threads have other names: {seconds}")
    return seconds


def connect(url):
    """A connection to the server."""
    at = urlparse(url)
    return http.client.HTTPConnection(at.hostname, at.port, timeout=3600)


def get(url, path):
    """The body of a GET."""
    connection = connect(url)
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def generated(url):
    """Output tokens so far."""
    found = re.search(r"^vllm:generation_tokens_total\S* (\S+)", get(url, "/metrics"), re.M)
    return float(found.group(1))


def keep_open(url, index, tokens):
    """Asks again and again, without a stream."""
    turn = 0
    try:
        while True:
            prompt = f"Number {index} of {turn}:"
            body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "seed": index}
            connection = connect(url)
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise SystemExit(f"a request was refused: {response.read()}")
            response.read()
            turn += 1
    except (OSError, http.client.HTTPException):
        pass


class Viewer:
    """Reads the stream and counts its frames."""

    def __init__(self, url):
        self.connection = connect(url)
        self.connection.request("GET", "/v1/trail/live")
        self.stream = self.connection.getresponse()
        self.socket = self.connection.sock
        self.frames = self.bytes = 0
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        try:
            for line in self.stream:
                self.frames += line.startswith(b"event: frame")
                self.bytes += len(line)
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass

    def close(self):
        self.socket.shutdown(2)
        self.thread.join()


def window(args, pid, url, is_viewed):
    """Figures of one window."""
    viewer = Viewer(url) if is_viewed else None
    # Comparisons of policies go on for some seconds after their last viewer.
    time.sleep(3 if is_viewed else 10)
    before, tokens, begin = thread_seconds(pid), generated(url), time.perf_counter()
    frames, sent = (viewer.frames, viewer.bytes) if viewer else (0, 0)
    time.sleep(args.seconds)
    after, elapsed = thread_seconds(pid), time.perf_counter() - begin
    tokens = generated(url) - tokens
    shares = {kind: (after[kind] - before[kind]) / elapsed for kind in after}
    figures = {"core_share": shares, "tokens_per_s": tokens / elapsed}
    figures["engine_us_per_token"] = 1e6 * shares["engine"] * elapsed / tokens
    if viewer:
        figures["frames_per_s"] = (viewer.frames - frames) / elapsed
        figures["kib_per_s"] = (viewer.bytes - sent) / elapsed / 1024
        viewer.close()
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="target/release/trail-rt")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--max-tokens", type=int, default=700)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    command = [args.program, "serve", "--json", "--port", "0", "--threads", "1"]
    command += ["--max-running", str(args.max_running), "--max-requests", str(2 * args.requests)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = json.loads(server.stdout.readline())["url"]
        for index in range(args.requests):
            ask = (url, index, args.max_tokens)
            threading.Thread(target=keep_open, args=ask, daemon=True).start()
        time.sleep(5)
        windows = {"alone": [], "viewed": []}
        for at in range(args.rounds):
            for kind in sorted(windows, reverse=at % 2 == 1):
                windows[kind].append(window(args, server.pid, url, kind == "viewed"))
        median = lambda kind, of: statistics.median(map(of, windows[kind]))
        report = {"requests": args.requests, "windows": windows, "difference": {}}
        for kind in ["engine", "live", "http", "ended", "other"]:
            share = lambda figures: figures["core_share"][kind]
            report["difference"][kind] = median("viewed", share) - median("alone", share)
        cost = lambda figures: figures["engine_us_per_token"]
        report["engine_ratio"] = median("viewed", cost) / median("alone", cost)
        report["frames_per_s"] = median("viewed", lambda figures: figures["frames_per_s"])
        print(json.dumps(report))
    finally:
        server.send_signal(signal.SIGTERM)
        time.sleep(1)
        server.kill()


if __name__ == "__main__":
    main()
