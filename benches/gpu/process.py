"""A program in its own process group, with a time limit that ends the whole group."""

import json
import os
import signal
import subprocess
import time

# Seconds between SIGTERM and SIGKILL, and from then on until a process is left alone.
GRACE = 5
# Bytes of output that are kept of a program whose output is not JSON.
TAIL = 4000
# Groups that run now. They stay in the session of the run, so that a signal to it ends them.
LIVE = set()


def run(argv, seconds, environment, expects="", log=None, tail=TAIL):
    """Runs `argv`, whose output, or the file `log`, must have `expects` in it.

    Returns a row with `status` (ok, failed, timed out, unkillable), `exit`, `seconds`, and
    `output`: the JSON that it printed, or the last `tail` bytes of its text.
    """
    begin = time.monotonic()
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            process_group=0,
        )
    except OSError as error:
        return {"status": "failed", "exit": None, "seconds": 0.0, "tail": str(error)}
    LIVE.add(child.pid)
    status, out, err = outcome(child, seconds)
    LIVE.discard(child.pid)
    spent = round(time.monotonic() - begin, 2)
    row = {"status": status, "exit": child.returncode, "seconds": spent}
    rows = parsed(out)
    if status == "ok" and expects not in out + contents(log):
        row["status"] = "failed"
        err += f"\nits output has no {expects!r}"
    if rows:
        row["output"] = rows
    if row["status"] != "ok" or not rows:
        row["tail"] = (out + err)[-tail:]
    return row


def outcome(child, seconds):
    """Waits for `child`, and ends its group when `seconds` are over."""
    ends = [(max(seconds, 0.1), None), (GRACE, signal.SIGTERM), (GRACE, signal.SIGKILL)]
    for limit, sign in ends:
        if sign:
            end(child.pid, sign)
        try:
            out, err = (text.decode(errors="replace") for text in child.communicate(timeout=limit))
        except subprocess.TimeoutExpired:
            continue
        # Processes that it left behind.
        end(child.pid, signal.SIGKILL)
        if sign:
            return "timed out", out, err
        return ("ok" if child.returncode == 0 else "failed"), out, err
    # A process inside of a driver call that never returns: the run goes on without it.
    return "unkillable", "", ""


def end(group, sign):
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):
        pass


def end_all():
    """Ends every group that runs, for a run that is ended from outside."""
    for group in list(LIVE):
        end(group, signal.SIGKILL)


def contents(file):
    try:
        return file.read_text(errors="replace") if file else ""
    except OSError:
        return ""


def parsed(text):
    """The JSON objects of `text`: one over all its lines, or one a line; none if it has others."""
    for pieces in ([text], text.splitlines()):
        try:
            return [json.loads(piece) for piece in pieces if piece.strip()]
        except ValueError:
            continue
    return []
