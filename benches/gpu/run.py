"""Runs the slices of a GPU session and writes a line an item as it comes.

    python3 benches/gpu/run.py BIN OUT [SLICE...] [--budget SECONDS] [--state FOLDER] [--rehearse]

Each item is a process group with a time limit; whatever happens to one, the others run and report.
OUT/rows.jsonl has the lines, which are also printed. `--state FOLDER` keeps them from call to call,
and what was ok on the same card is not run again. OUT/all.tgz, rewritten after each item, has all
of FOLDER: lines, clocks, proofs, vectors, counters.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import process
import slices
from report import Report

# Seconds of the budget for what follows the last item: its end, the canary, the archive.
RESERVE = 45
# Least seconds in which an item is begun.
LEAST = 20


class Run:
    """A run with its options: where the programs are, what is left of the budget."""

    def __init__(self, options):
        self.out, self.bin = Path(options.out).resolve(), Path(options.bin).resolve()
        self.state = Path(options.state).resolve() if options.state else self.out / "state"
        for folder in (self.out, self.state):
            folder.mkdir(parents=True, exist_ok=True)
        self.end = time.monotonic() + options.budget - RESERVE
        # Faults by item, that a rehearsal plans.
        self.faults = json.loads(os.environ.get("TRAIL_REHEARSED_FAULTS", "{}"))
        self.scale = slices.Rehearsal if options.rehearse else slices.Scale
        name = words(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
        self.report = Report(self.out, self.state, name[0] if name else "unknown")
        self.archiving = threading.Lock()
        # The reason for which no further item can run.
        self.dead = ""
        self.link_root()
        done = self.report.done
        self.plan = slices.Plan(self.bin, self.state, self.scale, self.tests(), done)

    def link_root(self):
        """Makes the folder in which the programs were built: tests read files by its path."""
        file = self.bin / "root"
        built = Path(file.read_text().strip()) if file.exists() else Path.cwd()
        if not built.exists():
            try:
                built.parent.mkdir(parents=True, exist_ok=True)
                built.symlink_to(Path.cwd())
            except OSError as error:
                print(f"{built}: {error}: tests of the demo model will fail", flush=True)

    def tests(self):
        """The tests of the two programs. One that cannot be listed is a failed item."""
        names = []
        for program in ("cuda", "cuda_backend"):
            argv = [str(self.bin / program), "--list"]
            row = process.run(argv, 60, self.environment(), expects=": test", tail=1 << 20)
            lines = [line[:-6] for line in row["tail"].splitlines() if line.endswith(": test")]
            if row["status"] != "ok":
                self.report.add({"slice": "tests", "item": f"list {program}", **row})
            # A timing, not a test.
            names += [f"{program} {line}" for line in lines if "host_time" not in line]
        return names

    def environment(self):
        return {"TRAIL_TEST_DRIVER": "real", "TRAIL_PROOFS": str(self.state / "proofs")}

    def slice(self, name):
        with ThreadPoolExecutor(self.scale.jobs) as pool:
            for items in self.plan.slice(name):
                items = items if isinstance(items, list) else [items]
                for done in [pool.submit(self.item, name, item) for item in items]:
                    done.result()

    def item(self, name, item):
        """Runs one item, unless it was ok before, or cannot be run."""
        if item.name in self.report.done:
            return
        left = self.end - time.monotonic()
        row = {"slice": name, "item": item.name}
        lost = "it did not come to an end twice" if item.name in self.report.lost else ""
        short = f"{left:.0f} s are left" if left < min(item.seconds, LEAST) else ""
        if why := self.dead or lost or short:
            self.report.add(row | {"status": "skipped", "seconds": 0, "tail": why})
            return
        self.report.begin(name, item.name)
        fault = dict(self.faults.get(item.name, {}))
        seconds = min(item.seconds, left, fault.pop("seconds", left))
        environment = self.environment() | item.environment | fault
        row |= process.run(item.argv, seconds, environment, item.expects, item.log)
        self.report.add(row)
        if row["status"] != "ok":
            self.after_a_failure(name, item)
        self.archive()

    def after_a_failure(self, name, item):
        """Checks that the device still works; notes who holds it, and the kernel log's lines."""
        canary = [str(self.bin / "trail-rt"), "doctor", "--gpu-check", "canary"]
        seconds = min(30, max(self.end + RESERVE / 2 - time.monotonic(), 5))
        row = process.run(canary, seconds, self.faults.get("canary", {}))
        row["holders"] = words(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"])
        row["xid"] = [line for line in words(["dmesg"]) if "xid" in line.lower()][-3:]
        self.report.add({"slice": name, "item": f"canary after {item.name}", **row})
        if row["status"] != "ok":
            self.dead = f"the device does not answer since {item.name}"

    def archive(self):
        """Everything so far, in one file; a run that is ended in between leaves the last one."""
        with self.archiving:
            aside = self.out / "all.part"
            try:
                with tarfile.open(aside, "w:gz") as tar:
                    for file in sorted(self.state.iterdir()):
                        tar.add(file, file.name)
                aside.replace(self.out / "all.tgz")
            except OSError as error:
                print(f"all.tgz: {error}", flush=True)


def words(argv):
    """Lines of a small program; none if it fails."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=5).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{argv[0]}: {error}", flush=True)
        return []


def watch_clocks(state):
    """Clocks, power and the reasons for low clocks, five times a second, into a file."""
    query = "timestamp,clocks.sm,clocks.mem,clocks_throttle_reasons.active,power.draw"
    argv = ["nvidia-smi", f"--query-gpu={query},temperature.gpu", "--format=csv", "-lms", "200"]
    try:
        with (state / "clocks.csv").open("a") as file:
            return subprocess.Popen(argv, stdout=file, stderr=subprocess.DEVNULL)
    except OSError as error:
        print(f"no clocks: {error}", flush=True)
        return None


def ended(*_):
    """A run that is ended from outside leaves no program behind that holds the device."""
    process.end_all()
    os._exit(143)


def main():
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("bin")
    parser.add_argument("out")
    parser.add_argument("slices", nargs="*", metavar="SLICE")
    parser.add_argument("--budget", type=float, default=540, help="seconds for all of it")
    parser.add_argument("--state", help="folder that outlives this call")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on the emulator")
    options = parser.parse_args()
    known = [*slices.SLICES, *slices.NAMED]
    for name in set(options.slices) - set(known):
        parser.error(f"no slice `{name}`: choose of {', '.join(known)}")
    signal.signal(signal.SIGTERM, ended)
    run = Run(options)
    clocks = watch_clocks(run.state)
    for name in options.slices or slices.SLICES:
        run.slice(name)
    if clocks:
        clocks.terminate()
    run.archive()
    for row in run.report.failed:
        print(f"{row['status']}: {row['slice']}: {row['item']}")
    sys.exit(1 if run.report.failed else 0)


if __name__ == "__main__":
    main()
