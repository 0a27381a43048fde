"""A program in its own process group, with a time limit that ends the whole group."""

import ctypes
import json
import os
import signal
import subprocess
import tempfile
import time

# Seconds between the polite signal and the other, and after that one until it is given up.
GRACE = 5
# `prctl`'s option by which a process is killed when its parent dies: a run that is ended from
# outside leaves no program behind that holds the device.
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
# Bytes of output that are kept of a program that failed.
TAIL = 2000


def run(argv, seconds, environment, expects=""):
    """Runs `argv`, whose output must have `expects` in it.

    Returns a row with `status` (ok, failed, timed out, unkillable), `exit`, `seconds`, and
    `output`: the JSON that it printed, or the tail of its text if it failed.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except OSError as error:
            return {"status": "failed", "exit": None, "seconds": 0.0, "output": str(error)}
        status = wait(child, seconds)
        row = {
            "status": status,
            "exit": child.returncode,
            "seconds": round(time.monotonic() - begin, 2),
        }
        text = read(out)
        rows = parsed(text)
        if status == "ok" and expects not in text:
            row["status"] = status = "failed"
        if rows:
            row["output"] = rows
        if status != "ok" or not rows:
            row["tail"] = (text + read(err))[-TAIL:]
        return row


def wait(child, seconds):
    """Waits for `child`, and ends its group when `seconds` are over, or what it left behind."""
    try:
        code = child.wait(timeout=max(seconds, 0.1))
        end_group(child.pid, signal.SIGKILL)
        return "ok" if code == 0 else "failed"
    except subprocess.TimeoutExpired:
        pass
    for sign in (signal.SIGTERM, signal.SIGKILL):
        end_group(child.pid, sign)
        try:
            child.wait(timeout=GRACE)
            end_group(child.pid, signal.SIGKILL)
            return "timed out"
        except subprocess.TimeoutExpired:
            continue
    # A process inside of a driver call that never returns: the run goes on without it.
    return "unkillable"


def end_group(leader, sign):
    try:
        os.killpg(leader, sign)
    except (ProcessLookupError, PermissionError):
        pass


def read(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def parsed(text):
    """The JSON objects of `text`: one over all its lines, or one a line; none if it has others."""
    for pieces in ([text], text.splitlines()):
        try:
            return [json.loads(piece) for piece in pieces if piece.strip()]
        except ValueError:
            continue
    return []
