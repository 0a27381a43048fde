"""Ctrl-C in a call that waits."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

GENERATE = """
from trail_rt import LLM, SamplingParams
llm = LLM(threads=1)
params = SamplingParams(max_tokens=500, ignore_eos=True)
print("ready", flush=True)
try:
    while True:
        llm.generate(["Once upon"] * 512, params)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    # The requests were aborted: the engine is free for the next one.
    llm.generate("x", SamplingParams(max_tokens=1))
    assert llm.llm_engine.num_unfinished() == 0
    raise
"""

ASYNC = """
import asyncio
from trail_rt import AsyncLLM, SamplingParams
async def main():
    llm = AsyncLLM(threads=1)
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    async def one(number):
        async for _ in llm.generate("Once upon", params, str(number)):
            pass
    print("ready", flush=True)
    try:
        await asyncio.gather(*(one(number) for number in range(512)))
    finally:
        print("interrupted", flush=True)
asyncio.run(main())
"""

SIMULATE = """
import numpy as np
from trail_rt import Simulator
rows = 200_000
trace = {"arrival": np.arange(rows) * 1e-4, "prompt": np.full(rows, 100), "output": np.full(rows, 200)}
print("ready", flush=True)
try:
    Simulator(max_running=64).run(trace, "fcfs")
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""

# An epoch of seconds.
TRAIN = """
import numpy as np
from trail_rt import Probe
rows = 20_000
activations = np.random.default_rng(1).standard_normal((rows, 1024), dtype=np.float32)
remaining = np.arange(rows) % 200
print("ready", flush=True)
try:
    Probe.train(activations, remaining, hidden=2048, epochs=1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""

LOWER_BOUND = """
import numpy as np
from trail_rt import Simulator
rows = 100_000
output = np.full(rows, 20_000)
trace = {"arrival": np.arange(rows) * 1e-4, "prompt": np.full(rows, 100), "output": output}
print("ready", flush=True)
try:
    Simulator(max_tokens=20_000).lower_bound(trace)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""

PROGRAMS = {
    "generate": GENERATE,
    "async": ASYNC,
    "simulate": SIMULATE,
    "train": TRAIN,
    "lower_bound": LOWER_BOUND,
}


# A background job of a shell ignores the signal.
HEARS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def interrupted(program: str, folder: Path) -> float:
    """Seconds from Ctrl-C to its exception."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HEARS + program]
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder)
    limit = threading.Timer(60.0, process.kill)
    limit.start()
    assert process.stdout is not None
    ready = process.stdout.readline()
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    line = process.stdout.readline()
    seconds = time.monotonic() - begin
    _, err = process.communicate()
    limit.cancel()
    assert (ready, line) == ("ready\n", "interrupted\n"), err
    assert err.rstrip().endswith("KeyboardInterrupt"), err
    return seconds


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_ctrl_c_ends_within_a_second(program: str, tmp_path: Path) -> None:
    # Other processes may have the cores for a while.
    assert any(interrupted(program, tmp_path) < 1.0 for _ in range(3))
