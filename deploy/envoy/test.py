"""trail-rt behind a real Envoy with an endpoint picker, all on loopback.

    test.py TRAIL_RT ENVOY    the two programs; exits with 1 at the first thing that does not hold
"""

import contextlib
import http.client
import http.server
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import endpoint_picker

HERE = pathlib.Path(__file__).parent
LIMIT_SECONDS = 180


class Process:
    """A child of this test, with its output by line."""

    def __init__(self, *command):
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        self.lines += (line.rstrip() for line in iter(self.child.stdout.readline, ""))

    def line_with(self, text):
        """The first line that contains `text`."""
        return wait(lambda: next((line for line in self.lines if text in line), None), text, self)

    def end(self):
        self.child.kill()
        self.child.wait()


def wait(condition, what, process=None):
    """The first true value of `condition`, for at most 60 s."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    output = "\n".join(process.lines[-20:]) if process else ""
    sys.exit(f"error: no {what} after 60 s\n{output}")


class Server(Process):
    def __init__(self, program):
        super().__init__(program, "serve", "--port", "0", "--threads", "1", "--max-running", "1")
        self.address = self.line_with("http://").split("http://")[1].strip()
        self.streams = []

    def outstanding(self):
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        name = "trail:predicted_tokens_outstanding "
        return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    def load(self, requests):
        """Sends it requests that it cannot answer during a check, past the gateway."""
        for _ in range(requests):
            connection = http.client.HTTPConnection(self.address, timeout=60)
            body = {"prompt": "Tell me a story.", "max_tokens": 900, "ignore_eos": True,
                    "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            self.streams.append(connection)
        wait(lambda: self.outstanding() > 50 * requests, "load", self)
        time.sleep(0.2)  # Four scrapes of the picker.

    def unload(self):
        while self.streams:
            self.streams.pop().close()
        wait(lambda: self.outstanding() == 0, "rest", self)
        time.sleep(0.2)


def ask(address, seed, padding=0, headers={}):
    """Status, the server that answered, and the text."""
    connection = http.client.HTTPConnection(address, timeout=60)
    body = {"prompt": "Count to ten.", "max_tokens": 8, "seed": seed, "user": "u" * padding}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.read()
    text = json.loads(answer)["choices"][0]["text"] if response.status == 200 else answer.decode()
    return response.status, response.headers.get("x-served-by"), text


def check(holds, what):
    if not holds:
        sys.exit(f"error: {what}")
    print(f"ok: {what}", flush=True)


def gateway(start, envoy, picker_port, servers, folder):
    """Starts Envoy; returns its address and that of its administration."""
    endpoints = []
    for server in servers:
        host, port = server.address.split(":")
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        endpoints.append({"endpoint": {"address": address}})
    config = (HERE / "envoy.yaml").read_text()
    config = config.replace("@SERVERS@", json.dumps(endpoints)).replace("@PICKER@", picker_port)
    path, admin = pathlib.Path(folder, "envoy.yaml"), pathlib.Path(folder, "admin")
    path.write_text(config)
    process = start(Process(envoy, "-c", str(path), "--concurrency", "1", "--disable-hot-restart",
                            "--admin-address-path", str(admin), "-l", "warn"))
    admin = wait(lambda: admin.exists() and admin.read_text(), "administration of Envoy", process)
    with urllib.request.urlopen(f"http://{admin}/listeners", timeout=10) as response:
        return response.read().decode().strip().split("::")[1], admin


def retries(admin):
    url = f"http://{admin}/stats?filter=cluster.servers.upstream_rq_retry_success"
    with urllib.request.urlopen(url, timeout=10) as response:
        return int(response.read().decode().rsplit(":", 1)[1])


def run(start, trail_rt, envoy, folder):
    a, b = (start(Server(trail_rt)) for _ in range(2))
    addresses = f"{a.address},{b.address}"
    picker = start(Process(sys.executable, str(HERE / "endpoint_picker.py"), addresses))
    port = wait(lambda: picker.lines, "port of the picker", picker)[0]
    front, admin = gateway(start, envoy, port, (a, b), folder)
    wait(lambda: ask(front, 0)[0] == 200, "answer through Envoy", picker)

    for busy, idle in ((a, b), (b, a)):
        busy.load(40)
        answers = [ask(front, seed) for seed in range(6)]
        served = {server for status, server, _ in answers}
        check(served == {idle.address} and {s for s, _, _ in answers} == {200},
              f"6 of 6 requests go to the server with less predicted work ({idle.address})")
        busy.unload()

    direct = ask(a.address, 7)[2]
    check(ask(front, 7)[2] == direct, "the answer is that of the server itself")
    check(ask(front, 7, padding=300_000)[2] == direct, "a body of 300 kB arrives in chunks")

    status, _, why = ask(front, 7, padding=5 << 20)
    check((status, why) == (413, "the body is too long"), "the picker holds no body of 5 MB")

    b.load(40)
    a.load(10)
    a.child.terminate()
    wait(lambda: health(a) == 503, "drain", a)
    check_retried(front, admin, picker, a, b, "a server that drains")
    check(health(a) == 503, "which still drains")
    a.end()
    status, _, _ = ask(front, 0, headers={"x-no-retry": "1"})
    check(status == 503, "without retries a request to a server that has died fails")
    check_retried(front, admin, picker, a, b, "a server that has died")
    b.unload()
    output = cut_stream(front, b)
    check("data: {" in output and "[DONE]" not in output, "a stream ends early if its server dies")
    check(ask(front, 0)[0] == 503, "without a server left the answer is 503")


class Flaky(http.server.BaseHTTPRequestHandler):
    """Metrics that are cut short, then lack the metric, then have it."""

    answers = [(99, ""), (0, ""), (0, f"{endpoint_picker.METRIC}5\n")]

    def do_GET(self):
        missing, text = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(200)
        self.send_header("content-length", str(len(text) + missing))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def check_scrapes():
    with http.server.HTTPServer(("127.0.0.1", 0), Flaky) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        loads = endpoint_picker.Loads([address])
        wait(lambda: loads.in_order() == [address], "scrape")
        server.shutdown()
    check(loads.tokens == {address: 5.0}, "metrics that are broken once are read again")


def cut_stream(front, server):
    """The text of a stream whose server is killed once the stream has begun."""
    connection = http.client.HTTPConnection(front, timeout=60)
    body = {"prompt": "Tell me a story.", "max_tokens": 900, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    output = response.readline()
    server.end()
    with contextlib.suppress(http.client.HTTPException, OSError):
        while line := response.readline():
            output += line
    return output.decode()


def health(server):
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request("GET", "/health")
    return connection.getresponse().status


def check_retried(front, admin, picker, gone, other, what):
    """4 requests, which the picker sends to `gone` first."""
    before = retries(admin)
    answers = [ask(front, seed, padding=100_000 * (seed % 2)) for seed in range(4)]
    first = all(pick.startswith(gone.address) for pick in picker.lines[-4:])
    check(first, f"4 requests are sent to {what} first")
    wrong = [answer for answer in answers if answer[:2] != (200, other.address)]
    check(not wrong, f"and answered by another {wrong or ''}".rstrip())
    check(retries(admin) == before + 4, "after a retry each")


def main(trail_rt, envoy):
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"error: not done after {LIMIT_SECONDS} s"))
    signal.alarm(LIMIT_SECONDS)
    check_scrapes()
    with contextlib.ExitStack() as processes, tempfile.TemporaryDirectory() as folder:
        def start(process):
            processes.callback(process.end)
            return process

        run(start, trail_rt, envoy, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
