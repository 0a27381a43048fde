"""A run of all slices on the emulator, with faults that must stay where they are planned.

    python3 benches/gpu/rehearse.py

Needs what `cargo test --workspace --no-run` builds. In the first run one item hangs, one breaks its
context, and the disk is full; the second has the same state folder, so that only those run again;
the third has no time, the fourth a device that is lost.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEBUG = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")) / "debug"
EMULATOR = DEBUG / "deps" / "libtrail_cuda_emulator.so"
# Programs of a machine with a GPU.
STAND_INS = {
    "nvidia-smi": "#!/bin/sh\necho emulator\n",
    "dmesg": "#!/bin/sh\necho 'NVRM: Xid (PCI:0000:01:00): 31, planned'\n",
    "compute-sanitizer": '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do\n'
    '    case $1 in --tool | --error-exitcode) shift ;; esac\n    shift\ndone\nexec "$@"\n',
}
# A test of a tenth of a second: beyond its limit of five it hangs.
HANGS = "test cuda step::embed_is_its_reference"
BREAKS = "decode 1"


def programs(folder):
    """Copies of the debug builds, as the emulator does not lie beside them on other machines; the
    emulator as the driver; and the other programs."""
    for name in ("bin", "driver", "stand-ins"):
        (folder / name).mkdir()
    shutil.copy(DEBUG / "trail-rt", folder / "bin")
    for name in ("cuda", "cuda_backend", "emulator"):
        built = [file for file in DEBUG.glob(f"deps/{name}-*") if not file.suffix]
        shutil.copy(max(built, key=lambda file: file.stat().st_mtime), folder / "bin" / name)
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / "driver" / name).symlink_to(EMULATOR.resolve(strict=True))
    for name, text in STAND_INS.items():
        file = folder / "stand-ins" / name
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)


class Session:
    """Runs with the same programs."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, out, state, slices, faults, *options):
        """Returns the rows of a run and the text that it printed."""
        out = self.folder / out
        out.mkdir()
        if out.name == "faults":
            # Every write to it finds the disk full.
            (out / "rows.jsonl").symlink_to("/dev/full")
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder / "driver"),
            "PATH": f"{self.folder / 'stand-ins'}:{os.environ['PATH']}",
            "TRAIL_EMU_CHIP": "h100",
            "TRAIL_REHEARSED_FAULTS": json.dumps(faults),
        }
        argv = [sys.executable, HERE / "run.py", self.folder / "bin", out, *slices, "--rehearse"]
        argv += ["--state", self.folder / state, *options]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=900)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines], done.stdout + done.stderr


def check(what, holds, printed):
    if not holds:
        sys.exit(f"{printed}\nthe rehearsal failed: {what}")


def faults_stay(session):
    faults = {
        HANGS: {"TRAIL_EMU_FAIL": "hang:1", "seconds": 5},
        BREAKS: {"TRAIL_EMU_FAIL": "launch:60:719"},
    }
    rows, printed = session.run("faults", "state", [], faults)
    status = {row["item"]: row["status"] for row in rows if row["status"] != "ok"}
    check("the planned faults, and no other", set(status) == {HANGS, BREAKS}, printed)
    check("the hang is ended", status[HANGS] == "timed out", printed)
    check("the context breaks", status[BREAKS] == "failed", printed)
    check("the disk is full", "No space left" in printed, printed)
    items = {row["item"] for row in rows}
    for item in ("doctor", "vectors", "decode 3", "products wgmma 128", "swap"):
        check(f"{item} is run", item in items, printed)
    return rows


def a_second_call_goes_on(session):
    # A line that was cut when the first call was ended.
    with (session.folder / "state" / "rows.jsonl").open("a") as file:
        file.write('{"slice": "first", "it')
    rows, printed = session.run("again", "state", [], {})
    check("only the failed run again", {row["item"] for row in rows} == {HANGS, BREAKS}, printed)
    check("and pass", all(row["status"] == "ok" for row in rows), printed)
    argv = [sys.executable, HERE / "table.py", session.folder / "state"]
    tables = subprocess.run(argv, capture_output=True, text=True)
    check("their tables", "| decode 1 |" in tables.stdout, tables.stdout + tables.stderr)


def nothing_runs_in_no_time(session):
    rows, printed = session.run("short", "short-state", ["first"], {}, "--budget", "1")
    check("no item is begun", {row["status"] for row in rows} == {"skipped"}, printed)


def a_lost_device_is_noticed(session):
    lost = {"TRAIL_EMU_FAIL": "lost:999"}
    faults = {"doctor": lost, "canary": lost}
    rows, printed = session.run("lost", "lost-state", ["first"], faults)
    skipped = [row for row in rows if row["status"] == "skipped"]
    check("nothing runs after it", len(skipped) > 3, printed)


def main():
    with tempfile.TemporaryDirectory() as name:
        programs(Path(name))
        session = Session(Path(name))
        rows = faults_stay(session)
        a_second_call_goes_on(session)
        nothing_runs_in_no_time(session)
        a_lost_device_is_noticed(session)
    slowest = sorted(rows, key=lambda row: -row["seconds"])[:4]
    print(f"rehearsed: {len(rows)} items; no fault spread, and a second call went on")
    print("slowest:", ", ".join(f"{row['item']} {row['seconds']:.0f} s" for row in slowest))


if __name__ == "__main__":
    main()
