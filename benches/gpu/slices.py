"""The items of each slice of a run on a GPU, in the order of their value."""

import shutil
import subprocess
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
    "cuda attention::decode_is_its_reference",
    "cuda attention::prefill_is_its_reference",
    "cuda sampling::the_device_chooses_what_the_cpu_does",
    "cuda_backend swap::what_comes_back_is_what_left_in_any_order",
    "cuda_backend backend::cuda_grouped_heads",
    "cuda ceiling::a_read_reads_every_word_once",
]
# Words in the names of tests of kernels that the default path does not launch.
EXPERIMENTS = ("hopper", "wgmma", "bulk", "cluster", "megakernel")
# Hopper's kernels, from the simplest to the last.
HOPPER = ("bulk", "attention_wgmma", "wgmma", "cluster", "hopper")
# Benchmarks with ceilings, which are repeated as often as an option says.
REPEATED = ("decode", "prefill")
# Kernels whose counters are read.
PROFILED = ("skinny_swiglu_8", "attention_decode", "tiled_swiglu_256")


@dataclass
class Item:
    """A process of a slice: its name, program and arguments, and time limit in seconds."""

    name: str
    argv: list
    seconds: float
    environment: dict = field(default_factory=dict)
    # May run beside others of its kind: no figure depends on it.
    together: bool = False
    # Text without which its output is a failure.
    expects: str = ""


# Slices in the order in which they run, and those that run only when they are named.
SLICES = ["first", "correct", "figures", "hopper", "rest"]
NAMED = ["loads", "burst"]


class Plan:
    """The items of each slice, for the programs in folder `bin`."""

    def __init__(self, bin, state, scale):
        self.bin, self.state, self.scale = bin, state, scale
        self.rates = []
        self.names = []

    def slice(self, name):
        return getattr(self, name)()

    def first(self):
        """The first minutes: does it work at all, the headline, what instructions compute."""
        yield Item("nvidia-smi", ["nvidia-smi", "-q"], 20)
        yield Item("disk", ["df", "-h", "/dev/shm", "."], 10)
        doctor = [self.trail, "doctor", "--gpu", "--json", *self.scale.doctor]
        yield Item("doctor", doctor, 150 * self.scale.slow)
        yield from (self.test(name) for name in FAMILIES[:: self.scale.families])
        for batch in self.scale.headline:
            yield self.decode(batch)
        argv = [str(self.bin / "emulator"), "--exact", "vectors::are_recorded"]
        record = {"TRAIL_VECTORS": str(self.state / "vectors.txt")}
        yield Item("vectors", argv, 40, record, False, "1 passed")

    def correct(self):
        """Every other test of the default path, each in a process, then some under memcheck."""
        names = [name for name in self.tests() if not is_experiment(name)]
        names = names[: self.scale.tests]
        yield from (self.test(name) for name in names)
        yield from self.sanitizer("memcheck")

    def figures(self):
        """Whole steps, the overlap and prompts; peers last."""
        if has_torch():
            yield Item("peers kernels", ["python3", str(PEERS / "torch_kernels.py")], 120)
        yield from (self.decode(batch) for batch in self.scale.batches)
        for batch in self.scale.overlap:
            argv = ["overlap", "--context", self.scale.short, "--batch", str(batch)]
            yield self.bench(f"overlap {batch}", argv, 90)
        for tokens in self.scale.prompts:
            yield self.bench(f"prefill {tokens}", ["prefill", "--tokens", str(tokens)], 60)
        if has_torch():
            steps = ["python3", str(PEERS / "torch_step.py")]
            batches = ",".join(map(str, self.scale.batches))
            more = ["--context", self.scale.context, "--batch", batches]
            yield Item("peers decode", [*steps, "decode", *more], 120)
            prompts = ",".join(map(str, self.scale.prompts))
            yield Item("peers prefill", [*steps, "prefill", "--tokens", prompts], 120)

    def hopper(self):
        """Hopper's kernels: proofs from the simplest to the last, then figures."""
        left = [name for name in self.tests() if is_experiment(name) and "mega" not in name]
        for word in HOPPER:
            chosen = [name for name in left if word in name]
            left = [name for name in left if word not in name]
            yield from (self.test(name) for name in chosen[: self.scale.tests])
        hopper = ["--experimental", "hopper-products"]
        for batch in self.scale.batches:
            yield self.decode(batch, hopper)
        for tokens in self.scale.prompts:
            argv = ["prefill", "--tokens", str(tokens), *hopper]
            yield self.bench(f"prefill {tokens} hopper", argv, 60)
        products = {"bulk": "1 8 32 64", "wgmma": "32 128 256 2048 4096"}
        for kernel, rows in products.items():
            yield self.kernels(f"products {kernel}", "products", kernel, rows.split())

    def rest(self):
        """Kernels alone, transfers, the megakernel, counters, races."""
        yield self.kernels("products skinny", "products", "skinny", "1 8 16 32 64".split())
        yield self.kernels("products tiled", "products", "tiled", "128 256 2048".split())
        yield self.kernels("attention", "attention", "", [])
        yield self.kernels("small", "small", "", [])
        swap = ["bench", "swap", "--shape", self.scale.shape, *self.scale.swap, "--json"]
        yield Item("swap", [self.trail, *swap], 60)
        load = ["bench", "load", "--random-weights", self.scale.shape, *self.scale.load, "--json"]
        yield Item("load", [self.trail, *load], 90)
        if self.scale.serves:
            argv = ["python3", str(HERE / "serve.py"), self.trail, self.scale.shape]
            yield Item("serve", argv, 120)
        mega = [name for name in self.tests() if "megakernel" in name][: self.scale.tests]
        yield from (self.test(name) for name in mega)
        yield self.decode(1, ["--experimental", "megakernel"])
        if shutil.which("ncu"):
            for kernel in PROFILED:
                counters = ["ncu", "--set", "detailed", "-k", kernel, "-c", "3"]
                bench = self.bench("", ["decode", "--batch", "8", "--repeats", "1"], 0).argv
                yield Item(f"ncu {kernel}", [*counters, *bench], 120)
        yield from self.sanitizer("racecheck")

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

    def tests(self):
        """The tests of the two programs, as `PROGRAM MODULE::NAME`."""
        for program in ("cuda", "cuda_backend") if not self.names else ():
            argv = [self.bin / program, "--list"]
            listed = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout
            lines = [line[:-6] for line in listed.splitlines() if line.endswith(": test")]
            # A timing, not a test.
            lines = [line for line in lines if "host_time" not in line]
            self.names += [f"{program} {line}" for line in lines]
        return self.names

    def test(self, name):
        program, test = name.split(" ")
        argv = [str(self.bin / program), "--exact", test, "--test-threads=1"]
        return Item(f"test {name}", argv, 40 * self.scale.slow, {}, True, "1 passed")

    def bench(self, name, argv, seconds):
        model = ["--device", "cuda", "--random-weights", self.scale.shape]
        quick = self.scale.quick if argv[0] in REPEATED else []
        more = [*model, *quick, "--json", *self.rates_of(argv[0])]
        return Item(name, [self.trail, "bench", *argv, *more], seconds * self.scale.slow)

    def rates_of(self, command):
        return self.rates if command in ("decode", "prefill", "kernels") else []

    def decode(self, batch, more=()):
        argv = ["decode", "--context", self.scale.context, "--batch", str(batch), *more]
        return self.bench(" ".join(["decode", str(batch), *more[1:]]), argv, 60)

    def kernels(self, name, part, kernel, rows):
        argv = ["kernels", "--part", part, "--kernel", kernel, "--shape", self.scale.shape]
        argv += ["--rows", ",".join(rows[: self.scale.cases])] if rows else []
        argv += [*self.scale.kernels, "--json", *self.rates]
        return Item(name, [self.trail, "bench", *argv], 90)

    def sanitizer(self, tool):
        """A test of each family under a tool of compute-sanitizer."""
        if not shutil.which("compute-sanitizer"):
            return
        for name in FAMILIES[: self.scale.tests]:
            item = self.test(name)
            checked = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "3"]
            yield Item(f"{tool} {name}", [*checked, *item.argv], 120, {}, True, "1 passed")


def is_experiment(name):
    return any(word in name for word in EXPERIMENTS)


def has_torch():
    """Returns true if PyTorch is installed, without loading it."""
    import importlib.util

    return importlib.util.find_spec("torch") is not None
