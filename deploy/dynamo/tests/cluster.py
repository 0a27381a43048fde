"""A router and workers as processes on loopback, and a client that checks what it streams.

Standard library only. Signals go to processes that were started here, by their pid.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("TRAIL_DYNAMO_BIN", HERE.parent / "target" / "debug"))
MODEL = HERE.parents[2] / "assets" / "demo"
# Characters of simulated answers, by position: worker/src/main.rs.
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def wait_until(what, condition, seconds=30.0):
    """Waits for `condition`; a test that waits longer fails with `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


@dataclass
class Answer:
    """The answer that a client received."""

    status: int = 0
    headers: dict = field(default_factory=dict)
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    finish: str = ""
    error: str = ""
    # Seconds since the request: of the first text, of the end, and of the longest silence in text.
    first: float = 0.0
    end: float = 0.0
    gap: float = 0.0


class Cluster:
    """One router and its workers, with discovery by files in a folder of their own."""

    def __init__(self, router=(), env=()):
        self.folder = Path(tempfile.mkdtemp(prefix="trail-dynamo-"))
        self.env = dict(os.environ)
        for name in ("DYN_DISCOVERY_BACKEND", "ETCD_ENDPOINTS", "NATS_SERVER"):
            self.env.pop(name, None)
        self.env |= {
            "DYN_FILE_KV": str(self.folder / "store"),
            "DYN_LOG": "info",
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
            "DYN_RUNTIME_NUM_WORKER_THREADS": "2",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
            **dict(env),
        }
        self.workers = []
        self.all = []
        self.router = self.start("trail-dynamo-router", ["--http", "127.0.0.1:0", *router])
        self.port = 0
        wait_until("the router serves", self.find_port)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.all:
            process.wait(timeout=30)
        if failure[0] is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"logs: {self.folder}")

    def step_costs(self, fixed_ms, prefill_token_ms=0):
        """A file of step costs."""
        file = self.folder / "step_cost.json"
        file.write_text(json.dumps({"fixed": fixed_ms * 1e6, "decode_row": 0,
                                    "prefill_token": prefill_token_ms * 1e6, "context_token": 0}))
        return file

    def start(self, program, args):
        log = open(self.folder / f"{len(self.all)}-{program}.log", "wb")
        process = subprocess.Popen(
            [BUILD / program, *map(str, args)], env=self.env, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, cwd=self.folder)
        process.log = Path(log.name)
        log.close()
        self.all.append(process)
        return process

    def find_port(self):
        if self.router.poll() is not None:
            raise AssertionError(f"the router ended: see {self.router.log}")
        for line in self.router.log.read_text(errors="replace").splitlines():
            if "serving on http://127.0.0.1:" in line:
                self.port = int(line.rsplit(":", 1)[1])
        return self.port

    def add_workers(self, count, args=(), engine="sim", reports=True, model="m"):
        """Starts workers and waits until the router hears from all and serves their model."""
        args = ["--engine", engine, "--model", MODEL, "--served-model-name", model, *args]
        for _ in range(count):
            self.workers.append(self.start("trail-dynamo-worker", args))
        if reports:
            wait_until("all workers report", self.all_report, 60 + 2 * count)
        wait_until("the model is served", lambda: model in self.models(), 30)
        # Discovery of the last worker may lag behind its first report.
        ask = lambda: self.ask("x", 1, model=model)
        wait_until("a request is served", lambda: ask().finish == "length", 30)

    def all_report(self):
        """True if the router has a report of each living worker. Not by number: it keeps the report
        of one that was just killed for half a second."""
        reported = {load["worker_id"] for load in self.loads()}
        return all(instance(one) in reported for one in self.workers if one.poll() is None)

    def holder(self):
        """The process of a worker that has a request running; `None` if there is none."""
        busy = {load["worker_id"] for load in self.loads() if load["running"]}
        living = (one for one in self.workers if one.poll() is None)
        return next((one for one in living if instance(one) in busy), None)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse().read().decode()
        connection.close()
        return answer

    def post(self, path, body):
        """The status of an answer, and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # Refused while it is sent: the answer can be there all the same.
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode()
        connection.close()
        return status, text

    def loads(self):
        return json.loads(self.get("/trail/loads"))

    def live(self):
        """Requests that the workers report."""
        return sum(len(load["running"]) + len(load["waiting"]) for load in self.loads())

    def models(self):
        return [model["id"] for model in json.loads(self.get("/v1/models")).get("data", [])]

    def migrations(self):
        """Requests that Dynamo has moved, streams and new ones."""
        lines = self.get("/metrics").splitlines()
        counts = [line for line in lines if "model_migration_total{" in line]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in counts)

    def body(self, prompt, max_tokens, chat=False, **more):
        body = {"model": "m", "max_tokens": max_tokens, "stream": True, "ignore_eos": True,
                "stream_options": {"include_usage": True}, **more}
        if chat:
            return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}
        return "/v1/completions", body | {"prompt": prompt}

    def ask(self, prompt, max_tokens, on_text=None, timeout=120.0, **more):
        """Streams one answer. `on_text(answer)` may raise StopIteration to disconnect."""
        path, body = self.body(prompt, max_tokens, **more)
        answer = Answer()
        begin = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            answer.status, answer.headers = response.status, dict(response.getheaders())
            if response.status != 200:
                answer.error = response.read().decode()
                return answer
            self.read(response, answer, begin, on_text)
        except StopIteration:
            answer.error = "disconnected"
        except (OSError, http.client.HTTPException) as failure:
            answer.error = repr(failure)
        finally:
            connection.close()
            answer.end = time.monotonic() - begin
        return answer

    def read(self, response, answer, begin, on_text):
        last = 0.0
        for line in response:
            line = line.decode().strip()
            if line.startswith("event: error") or '"error"' in line[:12]:
                answer.error = line
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            data = json.loads(line[6:])
            if "error" in data or "choices" not in data:
                answer.error = line
                continue
            if data.get("usage"):
                answer.tokens = data["usage"]["completion_tokens"]
                answer.prompt_tokens = data["usage"]["prompt_tokens"]
            for choice in data["choices"]:
                piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                answer.finish = choice.get("finish_reason") or answer.finish
                if not piece:
                    continue
                now = time.monotonic() - begin
                answer.first = answer.first or now
                answer.gap = max(answer.gap, now - last)
                last = now
                answer.text += piece
                if on_text:
                    on_text(answer)

    def ask_all(self, requests, gap=0.0):
        """Streams `requests` (keyword arguments of `ask`) at once, or `gap` seconds apart, each in
        a thread. Returns a function that waits for all answers."""
        answers = [Answer() for _ in requests]

        def one(at, request):
            time.sleep(gap * at)
            answers[at] = self.ask(**request)

        threads = [threading.Thread(target=one, args=item) for item in enumerate(requests)]
        for thread in threads:
            thread.start()

        def finish(seconds=180.0):
            deadline = time.monotonic() + seconds
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
                assert not thread.is_alive(), f"a stream does not end within {seconds:.0f} s"
            return answers

        return finish


def instance(process):
    """Dynamo's id of a worker, which it logs once it is in discovery; `None` before."""
    ids = re.findall(r"load reports of instance (\d+)", process.log.read_text(errors="replace"))
    return int(ids[0]) if ids else None


def kill(process, which=signal.SIGKILL):
    process.send_signal(which)


def is_whole(answer, length):
    """True if a simulated answer has exactly `length` characters, each at its position."""
    if answer.finish != "length" or answer.error or len(answer.text) != length:
        return False
    start = ALPHABET.find(answer.text[0])
    return all(answer.text[at] == ALPHABET[(start + at) % len(ALPHABET)] for at in range(length))


def count_whole(answers, lengths):
    whole = [is_whole(answer, length) for answer, length in zip(answers, lengths)]
    return sum(whole)
