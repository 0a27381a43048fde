"""Serves a checkpoint of 16 GB with random weights and asks it once: its answer is noise.

    python3 benches/gpu/serve.py TRAIL_RT SHAPE

Prints a JSON object: seconds until the server was ready, and the tokens of the answer.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path


def main():
    program, shape = sys.argv[1:]
    # A time limit ends it by a signal: the file of 16 GB goes all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    maker = Path(__file__).resolve().parent.parent / "random_checkpoint.py"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["python3", maker, shape, folder], check=True, stdout=subprocess.DEVNULL)
        model = f"{folder}/{shape}.safetensors"
        begin = time.monotonic()
        argv = [program, "--model", model, "--device", "cuda", "--port", "0", "--json"]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            url = json.loads(server.stdout.readline())["url"]
            ready = time.monotonic() - begin
            body = {"prompt": "a", "max_tokens": 32, "ignore_eos": True}
            request = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                tokens = json.load(answer)["usage"]["completion_tokens"]
        finally:
            server.terminate()
            server.wait(timeout=20)
    print(json.dumps({"shape": shape, "ready_s": round(ready, 2), "tokens": tokens}))
    sys.exit(0 if tokens == 32 else 1)


if __name__ == "__main__":
    main()
