"""A child made by a fork has no engine, and leaves that of its parent alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORK = """
import os
from trail_rt import LLM, EngineError, SamplingParams
params = SamplingParams(max_tokens=400, ignore_eos=True)
llm = LLM(threads=1)
stream = llm.stream("Once upon", params)
next(stream)
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: llm.generate("x"), lambda: next(stream)):
        try:
            call()
        except EngineError as why:
            refused += "after the fork" in str(why)
    del llm, stream, call
    os._exit(refused)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), len(list(stream)) > 0, llm.generate("x")[0].finished)
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", FORK]
    # Without the check the child waits forever.
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.stdout, done.returncode) == ("2 True True\n", 0), done.stderr
    assert "panicked" not in done.stderr
