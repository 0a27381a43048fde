"""A run of all slices on the emulator, with faults that must stay where they are planned.

    python3 benches/gpu/rehearse.py

Needs the debug builds of trail-rt, of the runtime's CUDA tests and of the emulator's. Two runs: in
the first an item hangs, one breaks its context, and the disk is full; in the second the device is
lost.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEBUG = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")) / "debug"
# Stand-ins for what a machine with a GPU has.
STAND_INS = {
    "nvidia-smi": "#!/bin/sh\necho emulator\n",
    "dmesg": "#!/bin/sh\necho 'NVRM: Xid (PCI:0000:01:00): 31, planned'\n",
    "compute-sanitizer": '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do\n'
    '    case $1 in --tool | --error-exitcode) shift ;; esac\n    shift\ndone\nexec "$@"\n',
}
HANGS = "test cuda attention::prefill_is_its_reference"
BREAKS = "decode 1"


def programs(folder):
    """The debug builds, the emulator as the driver, and the stand-ins."""
    for name in ("bin", "driver", "stand-ins"):
        (folder / name).mkdir()
    built = {"trail-rt": DEBUG / "trail-rt"}
    for name in ("cuda", "cuda_backend", "emulator"):
        found = [file for file in DEBUG.glob(f"deps/{name}-*") if not file.suffix]
        built[name] = max(found, key=lambda file: file.stat().st_mtime)
    for name, file in built.items():
        (folder / "bin" / name).symlink_to(file)
    for name in ("libcuda.so", "libcuda.so.1"):
        (folder / "driver" / name).symlink_to(DEBUG / "libtrail_cuda_emulator.so")
    for name, text in STAND_INS.items():
        file = folder / "stand-ins" / name
        file.write_text(text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)


def run(folder, name, slices, faults):
    """Returns the rows of a run, by item, and what it printed."""
    out, state = folder / name, folder / f"{name}-state"
    out.mkdir()
    if name == "faults":
        # Every write to it finds the disk full.
        (out / "rows.jsonl").symlink_to("/dev/full")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder / "driver"),
        "PATH": f"{folder / 'stand-ins'}:{os.environ['PATH']}",
        "TRAIL_EMU_CHIP": "h100",
        "TRAIL_REHEARSED_FAULTS": json.dumps(faults),
    }
    argv = [sys.executable, HERE / "run.py", folder / "bin", out, *slices, "--rehearse"]
    argv += ["--state", state]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=600)
    lines = (state / "rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], done.stdout + done.stderr


def check(what, holds, rows):
    if not holds:
        for row in rows:
            print(json.dumps(row))
        sys.exit(f"the rehearsal failed: {what}")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs(folder)
        faults = {
            HANGS: {"TRAIL_EMU_FAIL": "hang:1", "seconds": 5},
            BREAKS: {"TRAIL_EMU_FAIL": "launch:60:719"},
        }
        rows, printed = run(folder, "faults", [], faults)
        planned = [row for row in rows if row["status"] != "ok"]
        status = {row["item"]: row["status"] for row in planned}
        check("the planned faults, and no other", set(status) == {HANGS, BREAKS}, planned)
        check("the hang is ended", status[HANGS] == "timed out", planned)
        check("the context breaks", status[BREAKS] == "failed", planned)
        check("the disk is full", "No space left" in printed, [])
        items, slowest = len(rows), sorted(rows, key=lambda row: -row["seconds"])[:5]
        lost = {"doctor": {"TRAIL_EMU_FAIL": "lost:999"}, "canary": {"TRAIL_EMU_FAIL": "lost:999"}}
        rows, _ = run(folder, "lost", ["first"], lost)
        after = [row for row in rows if row["status"] == "skipped"]
        check("a lost device is noticed", len(after) > 5, rows)
        print(f"rehearsed: {items} items beside the faults, {len(after)} left out on a lost device")
        print("slowest:", ", ".join(f"{row['item']} {row['seconds']:.0f} s" for row in slowest))


if __name__ == "__main__":
    main()
