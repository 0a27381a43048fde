"""Runs the slices of a GPU session and writes what each item says as it comes.

    python3 benches/gpu/run.py BIN OUT [SLICE...] [--budget SECONDS] [--rehearse]

Each item is a process group with a time limit; whatever happens to one, the others run and report.
OUT/rows.jsonl has a line an item, which is also printed; `--state FOLDER` keeps those lines from
call to call, and items that were ok are not run again. OUT/all.tgz is written after each slice.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import process
import slices


class Scale:
    """Sizes of a run on hardware."""

    shape, context, short = "llama3-8b", "1024", "128"
    quick, kernels, swap, load = [], [], [], []
    headline, batches = [1, 64], [1, 16, 32, 64, 128, 256]
    overlap, prompts, cases = [1, 8, 64, 256], [2048, 4096], 1000
    doctor, families, tests, jobs, slow, serves = [], 1, 1000, 4, 1, True


class Rehearsal(Scale):
    """Sizes of a run on the emulator: the same items, small."""

    shape, context, short = "demo", "17", "17"
    quick = ["--repeats", "1", "--read-mib", "1", "--mma-rounds", "1"]
    kernels = [*quick, "--window-ms", "0", "--most-rows", "20", "--most-context", "40"]
    swap, load = ["--blocks", "9", "--pool-blocks", "20"], ["--link-mib", "1"]
    # The overlap has four engines: a test of the program runs it on the emulator.
    headline, batches, overlap, prompts, cases = [1], [3], [], [40], 1
    doctor = ["--replays", "8", "--limit-factor", "4"]
    # Every third family, and no checkpoint file, which needs numpy.
    families, tests, jobs, slow, serves = 3, 1, 2, 2, False


class Report:
    """The lines of all items, in OUT and in the folder that outlives a call."""

    def __init__(self, out, state):
        self.files = [out / "rows.jsonl", state / "rows.jsonl"]
        self.lock = threading.Lock()
        self.failed = []
        self.done = set()
        if self.files[1].exists():
            rows = map(json.loads, self.files[1].read_text().splitlines())
            self.done = {(row["slice"], row["item"]) for row in rows if row["status"] == "ok"}

    def add(self, row):
        line = json.dumps(row)
        with self.lock:
            if row["status"] != "ok":
                self.failed.append(row)
            for file in self.files:
                try:
                    with file.open("a") as appended:
                        appended.write(line + "\n")
                except OSError as error:
                    # A full disk: the line stands in what the run prints.
                    print(f"{file}: {error}", flush=True)
            shown = {key: value for key, value in row.items() if key != "output"}
            print(json.dumps(shown), flush=True)


class Run:
    """A run with its options: where the programs are, what is left of the budget."""

    def __init__(self, options):
        self.out, self.bin = Path(options.out).resolve(), Path(options.bin).resolve()
        self.state = Path(options.state).resolve() if options.state else self.out / "state"
        for folder in (self.out, self.state):
            folder.mkdir(parents=True, exist_ok=True)
        self.scale = Rehearsal if options.rehearse else Scale
        self.plans = json.loads(os.environ.get("TRAIL_REHEARSED_FAULTS", "{}"))
        self.end = time.monotonic() + options.budget
        self.report = Report(self.out, self.state)
        self.plan = slices.Plan(self.bin, self.state, self.scale)
        self.dead = None
        self.link_root()

    def link_root(self):
        """The folder in which the programs were built: tests read files by its path."""
        file = self.bin / "root"
        built = Path(file.read_text().strip()) if file.exists() else Path.cwd()
        if not built.exists():
            try:
                built.parent.mkdir(parents=True, exist_ok=True)
                built.symlink_to(Path.cwd())
            except OSError as error:
                print(f"{built}: {error}: tests of the demo model will fail", flush=True)

    def slice(self, name):
        pool = ThreadPoolExecutor(self.scale.jobs)
        beside = []
        for item in self.plan.slice(name):
            if not item.together:
                wait(beside)
                self.item(name, item)
            else:
                beside.append(pool.submit(self.item, name, item))
        wait(beside)
        pool.shutdown()
        self.archive()

    def item(self, slice_name, item):
        """Runs one item, unless it was ok before or no time is left for it."""
        if (slice_name, item.name) in self.report.done:
            return
        left = self.end - time.monotonic()
        row = {"slice": slice_name, "item": item.name}
        if self.dead or left < min(item.seconds, 20):
            row |= {"status": "skipped", "tail": self.dead or f"{left:.0f} s are left"}
            self.report.add(row)
            return
        environment = {"TRAIL_TEST_DRIVER": "real", "TRAIL_PROOFS": str(self.state / "proofs")}
        seconds = min(item.seconds, left)
        if self.scale is Rehearsal:
            environment["TRAIL_TEST_DRIVER"] = "emulator"
            planned = dict(self.plans.get(item.name, {}))
            seconds = min(seconds, planned.pop("seconds", seconds))
            environment |= planned
        environment |= item.environment
        row |= process.run(item.argv, seconds, environment, item.expects)
        if item.name == "peers kernels" and row["status"] == "ok":
            rate = row["output"][0]["matmul_tflop_per_s"]
            self.plan.rates = ["--matrix-tflops", str(rate)]
        self.report.add(row)
        if row["status"] != "ok":
            self.after_a_failure(slice_name, item)

    def after_a_failure(self, slice_name, item):
        """Checks that the device still works; notes who holds it, and the kernel log's lines."""
        canary = [str(self.bin / "trail-rt"), "doctor", "--gpu-check", "canary"]
        row = process.run(canary, 30, self.plans.get("canary", {}))
        row["holders"] = words(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"])
        row["xid"] = [line for line in words(["dmesg"]) if "xid" in line.lower()][-3:]
        self.report.add({"slice": slice_name, "item": f"canary after {item.name}", **row})
        if row["status"] != "ok":
            self.dead = f"the device does not answer since {item.name}"

    def archive(self):
        """All that there is, in one file."""
        try:
            with tarfile.open(self.out / "all.tgz", "w:gz") as tar:
                for file in sorted(self.state.iterdir()):
                    tar.add(file, file.name)
        except OSError as error:
            print(f"all.tgz: {error}", flush=True)


def wait(futures):
    for future in futures:
        future.result()
    futures.clear()


def words(argv):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [str(error)]
    return done.stdout.splitlines()


def watch_clocks(out):
    """Clocks, power and what slows the chip down, five times a second, into a file."""
    query = "timestamp,clocks.sm,clocks.mem,clocks_throttle_reasons.active,power.draw"
    argv = ["nvidia-smi", f"--query-gpu={query},temperature.gpu", "--format=csv", "-lms", "200"]
    try:
        with (out / "clocks.csv").open("w") as file:
            return subprocess.Popen(argv, stdout=file, stderr=subprocess.DEVNULL)
    except OSError as error:
        print(f"no clocks: {error}", flush=True)
        return None


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
    run = Run(options)
    clocks = watch_clocks(run.out)
    for name in options.slices or slices.SLICES:
        run.slice(name)
    if clocks:
        clocks.terminate()
    for row in run.report.failed:
        print(f"{row['status']}: {row['slice']}: {row['item']}")
    sys.exit(1 if run.report.failed else 0)


if __name__ == "__main__":
    main()
