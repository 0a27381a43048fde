"""The items of each slice of a run on a GPU, in the order of their value."""

import importlib.util
import shutil
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / "peers"

# One small test of each family of kernels, the default path first.
FAMILIES = [
    "cuda step::embed_is_its_reference",
    "cuda step::sums::tap_mean_does_not_depend_on_the_chunks",
    "cuda_backend weights::weights_arrive_in_the_order_of_the_kernels",
    "cuda gemm::skinny_products_are_their_references",
    "cuda gemm::tiled_products_are_their_references",
    # Hopper's, skipped on others.
    "cuda gemm::wgmma_products_are_their_references",
    "cuda attention::wgmma_prefill_is_its_reference",
    "cuda attention::decode_is_its_reference",
    "cuda attention::prefill_is_its_reference",
    "cuda sampling::the_device_chooses_what_the_cpu_does",
    "cuda_backend swap::what_comes_back_is_what_left_in_any_order",
    "cuda_backend backend::cuda_grouped_heads",
    "cuda ceiling::a_read_reads_every_word_once",
]
MEGAKERNEL = "cuda_backend backend::megakernel::"
# Families that a sanitizer is of no use for: random events whose number depends on the time, and
# for racecheck whole steps, where it took mbarriers for races (docs/decisions/cuda.md).
TIMED = "cuda_backend swap::"
STEPS = "cuda_backend backend::"
# Kernels whose counters are read, with the beginnings of their names, and the benchmark that
# launches them.
PROFILED = {
    "skinny_swiglu": ("skinny_swiglu_8", ["decode", "--batch", "8"]),
    "attention_decode": ("attention_decode", ["decode", "--batch", "8"]),
    "swiglu_of_a_prompt": ("(tiled|wgmma)_swiglu", ["prefill", "--tokens", "2048"]),
}
# Slices in the order in which they run, and those that run only when they are named.
SLICES = ["first", "correct", "figures", "rest"]
NAMED = ["loads", "burst"]


@dataclass
class Item:
    """A process of a slice: its name, program and arguments, and time limit in seconds."""

    name: str
    argv: list
    seconds: float
    environment: dict = field(default_factory=dict)
    # Text without which its output, or its file `log`, is a failure.
    expects: str = ""
    log: Path = None


class Plan:
    """The items of each slice, for the programs in folder `bin`: one, or a list of items that may
    run beside each other, as no figure depends on them. `names` are those of the tests, as
    `PROGRAM MODULE::NAME`, and `done` the rows of items that were ok."""

    def __init__(self, bin, state, scale, names, done):
        self.bin, self.state, self.scale = bin, state, scale
        self.names, self.done = names, done

    def slice(self, name):
        return getattr(self, name)()

    def first(self):
        """The first minutes: does it work at all, the headline, results of instructions."""
        yield Item("nvidia-smi", ["nvidia-smi", "-q"], 20)
        yield Item("disk", ["df", "-h", "/dev/shm", "."], 10)
        doctor = [self.trail, "doctor", "--gpu", "--json", *self.scale.doctor]
        yield Item("doctor", doctor, 150 * self.scale.slow)
        yield [self.test(name) for name in FAMILIES[:: self.scale.families]]
        yield from (self.decode(batch) for batch in self.scale.headline)
        argv = [str(self.bin / "emulator"), "--exact", "vectors::are_recorded"]
        record = {"TRAIL_VECTORS": str(self.state / "vectors.txt")}
        yield Item("vectors", argv, 40, record, expects="1 passed")

    def correct(self):
        """Every other test of the default path, each in a process; whether answers depend on other
        requests; some tests under memcheck."""
        names = [name for name in self.names if not name.startswith(MEGAKERNEL)]
        yield [self.test(name) for name in names[: self.scale.tests]]
        if self.scale.flips:
            argv = ["bench", "flips", "--device", "cuda", *self.scale.flips, "--json"]
            yield Item("flips", [self.trail, *argv], 120)
        yield self.sanitizer("memcheck", TIMED)

    def figures(self):
        """Whole steps, the overlap and prompts; peers last, but for the matrix rate."""
        if self.scale.peers:
            yield Item("peers kernels", ["python3", str(PEERS / "torch_kernels.py")], 120)
        yield from (self.decode(batch) for batch in self.scale.batches)
        for batch in self.scale.overlap:
            argv = ["overlap", "--context", self.scale.short, "--batch", str(batch)]
            yield self.bench(f"overlap {batch}", argv, 90)
        yield from (self.prefill(tokens) for tokens in self.scale.prompts)
        if self.scale.peers:
            batches = ",".join(map(str, self.scale.batches))
            # Compiled steps take minutes each.
            more = ["--context", self.scale.context, "--batch", batches, "--compiled", "0"]
            yield self.peer("decode", *more)
            yield self.peer("prefill", "--tokens", ",".join(map(str, self.scale.prompts)))

    def rest(self):
        """Kernels alone, transfers, serving, the megakernel, counters, races."""
        yield from self.products("skinny", [1, 8, 16, 32, 64])
        yield from self.products("tiled", [128, 256, 2048])
        if self.is_hopper():
            yield from self.products("wgmma", [128, 256, 2048, 4096])
        yield self.kernels("attention", ["--part", "attention"])
        yield self.kernels("small", ["--part", "small"])
        swap = ["bench", "swap", "--shape", self.scale.shape, *self.scale.swap, "--json"]
        yield Item("swap", [self.trail, *swap], 60)
        load = ["bench", "load", "--random-weights", self.scale.shape, *self.scale.load, "--json"]
        yield Item("load", [self.trail, *load], 90)
        if self.scale.peers:
            yield self.peer("transfers")
        if self.scale.serves:
            argv = ["python3", str(HERE / "serve.py"), self.trail, self.scale.shape]
            yield Item("serve", argv, 120)
        names = [name for name in self.names if name.startswith(MEGAKERNEL)]
        yield [self.test(name) for name in names[: self.scale.tests]]
        yield self.decode(1, megakernel=True)
        if self.scale.counters and shutil.which("ncu"):
            yield from (self.counters(kernel) for kernel in PROFILED)
        yield self.sanitizer("racecheck", (TIMED, STEPS))

    def loads(self):
        """Policies at shares of the capacity: forced lengths, and too few KV blocks for all."""
        more = ["--kv-blocks", "4096", "--requests", "600", "--loads", "0.8,1.0"]
        yield self.bench("loads", ["serve", *more], 480)

    def burst(self):
        """The same with 2,000 requests at once."""
        yield self.bench("burst", ["serve", "--kv-blocks", "4096", "--burst", "2000"], 480)

    @property
    def trail(self):
        return str(self.bin / "trail-rt")

    def is_hopper(self):
        """Returns true if `doctor` found a Hopper, in this call or an earlier one."""
        checks = self.done.get("doctor", {}).get("output", [])
        return any(of["found"].get("compute") == "9.0" for of in checks)

    def rate(self):
        """cuBLAS's rate as an option, from this call or an earlier one on the same card."""
        row = self.done.get("peers kernels")
        return ["--matrix-tflops", str(row["output"][0]["matmul_tflop_per_s"])] if row else []

    def test(self, name):
        program, test = name.split(" ")
        argv = [str(self.bin / program), "--exact", test, "--test-threads=1"]
        return Item(f"test {name}", argv, 40 * self.scale.slow, expects="1 passed")

    def bench(self, name, argv, seconds, more=()):
        model = ["--device", "cuda", "--random-weights", self.scale.shape, "--json"]
        argv = [self.trail, "bench", *argv, *model, *more]
        return Item(name, argv, seconds * self.scale.slow)

    def step(self, name, argv, more=()):
        """Steps on the backend alone, whose floor needs the matrix rate."""
        return self.bench(name, argv, 60, [*self.scale.ceilings, *self.rate(), *more])

    def decode(self, batch, megakernel=False):
        argv = ["decode", "--context", self.scale.context, "--batch", str(batch)]
        if megakernel:
            return self.step(f"decode {batch} megakernel", argv, ["--megakernel"])
        return self.step(f"decode {batch}", argv)

    def prefill(self, tokens):
        return self.step(f"prefill {tokens}", ["prefill", "--tokens", str(tokens)])

    def products(self, kernel, rows):
        for count in rows[: self.scale.cases]:
            argv = ["--part", "products", "--kernel", kernel, "--rows", str(count)]
            yield self.kernels(f"products {kernel} {count}", argv)

    def kernels(self, name, argv):
        argv = ["bench", "kernels", *argv, "--shape", self.scale.shape, "--json"]
        argv += [*self.scale.ceilings, *self.scale.kernels, *self.rate()]
        return Item(name, [self.trail, *argv], 90)

    def peer(self, what, *argv):
        argv = ["python3", str(PEERS / "torch_step.py"), what, *argv]
        return Item(f"peers {what}", argv, 120)

    def counters(self, kernel):
        log = self.state / f"ncu-{kernel}.txt"
        begins, argv = PROFILED[kernel]
        counters = ["ncu", "--set", "detailed", "-k", f"regex:^{begins}", "-c", "3"]
        bench = self.bench("", [*argv, "--repeats", "1"], 0)
        argv = [*counters, "--log-file", str(log), *bench.argv]
        return Item(f"ncu {kernel}", argv, 120, expects="Section:", log=log)

    def sanitizer(self, tool, without):
        """A test of each family, but for names that begin with `without`, under a tool of
        compute-sanitizer, if it is installed."""
        found = shutil.which("compute-sanitizer")
        names = [name for name in FAMILIES if found and not name.startswith(without)]
        checked = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3"]
        return [
            Item(f"{tool} {test.name}", [*checked, *test.argv], 120, expects="1 passed")
            for test in map(self.test, names[: self.scale.tests])
        ]


def has(module):
    """Returns true if a module of Python is installed, without loading it."""
    return importlib.util.find_spec(module) is not None


class Scale:
    """Sizes of a run on hardware."""

    shape, context, short = "llama3-8b", "1024", "128"
    ceilings, kernels, swap, load = [], [], [], []
    headline, batches = [1, 64], [1, 16, 32, 64, 128, 256]
    overlap, prompts, cases = [1, 8, 64, 256], [2048, 4096], 1000
    doctor, families, tests, jobs, slow = [], 1, 1000, 4, 1
    flips = ["--requests", "24", "--tokens", "64"]
    serves, peers, counters = has("numpy"), has("torch"), True


class Rehearsal(Scale):
    """Sizes of a run on the emulator: the same items, small."""

    shape, context, short = "demo", "17", "17"
    ceilings = ["--repeats", "1", "--read-mib", "1", "--mma-rounds", "1"]
    kernels = ["--window-ms", "0", "--most-rows", "20", "--most-context", "40"]
    swap, load = ["--blocks", "9", "--pool-blocks", "20"], ["--link-mib", "1"]
    # The overlap has four engines: a test of the program runs it on the emulator.
    headline, batches, overlap, prompts, cases = [1], [3], [], [40], 1
    doctor = ["--replays", "8", "--limit-factor", "4"]
    # Some thirty engines: `cargo test` asks the same of smaller models.
    flips = []
    # Every third family; nothing that needs numpy, PyTorch or a real profiler.
    families, tests, jobs, slow = 3, 1, 2, 2
    serves, peers, counters = False, False, False
