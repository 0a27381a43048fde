"""Decode steps and prefill of GGUF files by `trail-rt bench` and by llama.cpp, in turn on the CPU.

    python benches/peers/llama_step.py --out FILE.json MODEL.gguf [MODEL.gguf ...]
    python benches/peers/llama_step.py --out FILE.json --batch 1 --tokens 512 --rounds 3 MODEL.gguf
    python benches/peers/llama_step.py --out FILE.json --context 128,4096 --tokens "" MODEL.gguf

Needs llama-cpp-python, compiled for the CPU at hand (its system information is in the result).
`benches/random_checkpoint.py llama3.2-1b FILE.gguf --dtype TYPE` makes a file with random weights.

Each round of a point measures both once, alternating who begins, so that a drift of the machine
hits both. Our side is one process of `trail-rt bench`, which times its passes itself (start and
loading are not in them); llama.cpp is held in this process, idle meanwhile. Either side warms up
with one pass a round, then the median of the round's passes counts. The table has the medians of
the rounds as tokens a second, and the median of the rounds' ratios (above 1: ours is faster), each
with its range. Stop other work: llama.cpp's threads spin at barriers, so one more busy thread than
cores costs it far more than us. The share of CPU time that other processes (or the host) took is
recorded. A round begins when it is at most `--others`, or after `--wait` seconds; one in which it
was above is repeated, `--attempts` times at most, and a row with such a round says "disturbed".

What is timed is the same:
- decode: one token for each of B sequences of `context` tokens, the new one included, and the
  logits of all B; no sampling. In llama.cpp each sequence has its own KV stream (`kv_unified`
  off), and the new tokens are taken out again between passes.
- prefill: a prompt into an empty KV cache, and the logits of its last token. Ours takes it in one
  batch, llama.cpp in micro-batches of 512 (`n_ubatch`).

What differs: our KV cache is f32 unless `--kv-dtype` says otherwise, llama.cpp's f16 (the defaults
of both). llama.cpp runs with flash
attention or without, whichever was faster in a trial before the rounds (recorded). Ours decodes
over made-up keys and values, llama.cpp over those of a prompt; the time does not depend on their
values. Between its passes, ours also measures the rate of the memory or of multiply-adds.
"""
import argparse
import ctypes
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = "avx2 fma f16c avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_tile "
FLAGS = (FLAGS + "amx_int8 amx_bf16 asimd asimddp i8mm bf16 sve").split()
UBATCH = 512


class Peer:
    """A model in llama.cpp."""

    def __init__(self, path, args):
        self.args = args
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def close(self):
        llama_cpp.llama_model_free(self.model)


class Context:
    """A context of `sequences` KV streams of up to `tokens` tokens."""

    def __init__(self, peer, tokens, sequences, rows, flash):
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = sequences
        params.n_ctx = sequences * (-(-tokens // 256) * 256)
        params.n_batch = rows
        params.n_ubatch = UBATCH
        params.n_threads = params.n_threads_batch = peer.args.threads
        params.flash_attn_type = int(flash)
        params.kv_unified = False
        params.no_perf = True
        self.vocab, self.context = peer.vocab, llama_cpp.llama_init_from_model(peer.model, params)
        if not self.context:
            sys.exit(f"llama.cpp has no context of {sequences} x {tokens} tokens")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(rows, 0, 1)
        self.rows = rows

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)

    def forward(self, rows):
        """Computes (token, position, sequence, whether its logits are wanted) in one call; seconds,
        and the logits of the last row, if they are wanted."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        start = time.perf_counter()
        failed = llama_cpp.llama_decode(self.context, batch)
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)  # Waits for the end.
        seconds = time.perf_counter() - start
        if failed:
            sys.exit(f"llama_decode returned {failed}")
        wanted = any(row[3] for row in rows)
        return seconds, np.ctypeslib.as_array(logits, (self.vocab,)) if wanted else None

    def prompt(self, tokens):
        """Computes a prompt in sequence 0, in calls of at most the context's rows; seconds and
        logits of the last call."""
        ids = [(i * 7 + 1) % self.vocab for i in range(tokens)]
        rows = [(token, at, 0, at == tokens - 1) for at, token in enumerate(ids)]
        parts = range(0, tokens, self.rows)
        return [self.forward(rows[at : at + self.rows]) for at in parts][-1]


class Decode:
    """Decode steps: one context for all batch sizes."""

    def __init__(self, peer, context, largest, flash):
        self.kv = Context(peer, context, largest, max(UBATCH, largest), flash)
        self.position = context - 1
        if self.position:
            self.kv.prompt(self.position)
        for sequence in range(1, largest):
            llama_cpp.llama_memory_seq_cp(self.kv.memory, 0, sequence, -1, -1)

    def run(self, batch):
        def row(sequence):
            return (sequence * 31 + 1) % self.kv.vocab, self.position, sequence, True

        seconds, logits = self.kv.forward([row(sequence) for sequence in range(batch)])
        checked = check(logits)
        for sequence in range(batch):
            llama_cpp.llama_memory_seq_rm(self.kv.memory, sequence, self.position, -1)
        return seconds, checked


class Prefill:
    """Prompts into an empty cache."""

    def __init__(self, peer, longest, flash):
        self.kv = Context(peer, longest, 1, longest, flash)

    def run(self, tokens):
        llama_cpp.llama_memory_clear(self.kv.memory, False)
        seconds, logits = self.kv.prompt(tokens)
        return seconds, check(logits)


def check(logits):
    """A sum of the logits' bits; they must be finite."""
    if not np.isfinite(logits).all():
        sys.exit("llama.cpp's logits are not finite")
    return int(logits.view(np.uint32).sum(dtype=np.uint64))


def passes(work, size, repeats):
    """Seconds of `repeats` passes after one that warms up; all must have the same logits."""
    results = [work.run(size) for _ in range(repeats + 1)]
    if len({checked for _, checked in results}) > 1:
        print("llama.cpp's logits differ between repetitions", file=sys.stderr)
    return [seconds for seconds, _ in results[1:]]


def ours(args, path, what, size, context, repeats):
    """One process of `trail-rt bench`: median seconds of its passes, and its report."""
    sizes = ["--batch", size, "--context", context] if what == "decode" else ["--tokens", size]
    command = [args.program, "--json", "bench", what, "--model", path, "--device", "cpu"]
    command += [*sizes, "--repeats", repeats, "--threads", args.threads]
    command += ["--kv-dtype", args.kv_dtype]
    command += ["--repack"] if args.repack else []
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{run.stderr}")
    report = json.loads(run.stdout)
    row = report["rows"][0]
    return row["step_us"]["median"] / 1e6 if what == "decode" else row["seconds"], report


class Others:
    """Share of the CPU time since its creation that went to other processes or, on a
    guest, to other work of the host (`steal`)."""

    def __init__(self):
        self.start = self.read()

    @staticmethod
    def read():
        # user nice system idle iowait irq softirq steal guest guest_nice, of all cores.
        with open("/proc/stat") as file:
            ticks = [int(part) for part in file.readline().split()[1:9]]
        own = os.times()
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        used = own.user + own.system + own.children_user + own.children_system
        return busy - used, time.perf_counter() * os.cpu_count()

    def share(self):
        others, total = (now - then for now, then in zip(self.read(), self.start))
        return max(others, 0.0) / total


def undisturbed(args, run):
    """Result of `run`, and the others' share of the CPU time meanwhile. Waits for a quiet machine,
    and runs again if it was not quiet."""
    for _ in range(args.attempts):
        give_up = time.monotonic() + args.wait
        while time.monotonic() < give_up:
            others = Others()
            time.sleep(0.5)
            if others.share() <= args.others:
                break
        others = Others()
        result, share = run(), others.share()
        if share <= args.others:
            break
    return result, share


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def rounds(args, path, what, size, context, works):
    """A point: both sides in turn. A pass computes `size` tokens; `works` has llama.cpp's side with
    flash attention and without, or one of the two."""
    repeats = args.repeats if what == "decode" else args.prefill_repeats

    def trial():
        return {flash: min(work.run(size)[0] for _ in range(2)) for flash, work in works.items()}

    def both(index):
        sample = {"first": ["ours", "llama.cpp"][index % 2]}
        for side in [0, 1] if index % 2 == 0 else [1, 0]:
            if side == 0:
                sample["ours_s"], sample["report"] = ours(args, path, what, size, context, repeats)
            else:
                sample["llama_cpp_passes_s"] = passes(works[flash], size, repeats)
                sample["llama_cpp_s"] = statistics.median(sample["llama_cpp_passes_s"])
        return sample

    tried = undisturbed(args, trial)[0] if len(works) > 1 else {}
    flash = min(tried, key=tried.get) if tried else next(iter(works))
    samples = []
    for index in range(args.rounds):
        sample, share = undisturbed(args, lambda: both(index))
        report = sample.pop("report")
        sample["others"] = share
        samples.append(sample)
    point = {"what": what, ("batch" if what == "decode" else "tokens"): size}
    if what == "decode":
        point["context"] = context
    return {
        **point,
        "dtype": report["dtype"],
        "isa": report["isa"],
        "flash_attention": bool(flash),
        "flash_attention_trial_s": {"on" if on else "off": s for on, s in tried.items()},
        "repeats": repeats,
        "ours_tokens_per_s": spread([size / sample["ours_s"] for sample in samples]),
        "llama_cpp_tokens_per_s": spread([size / sample["llama_cpp_s"] for sample in samples]),
        "ratio": spread([sample["llama_cpp_s"] / sample["ours_s"] for sample in samples]),
        "disturbed": sum(sample["others"] > args.others for sample in samples),
        "samples": samples,
    }


def points(args, path):
    """Measures all points of one file."""
    peer = Peer(path, args)
    flashes = {"on": [True], "off": [False], "faster": [True, False]}[args.flash_attention]
    for context in args.context if args.batch else []:
        largest = max(args.batch)
        works = {flash: Decode(peer, context, largest, flash) for flash in flashes}
        for batch in args.batch:
            yield rounds(args, path, "decode", batch, context, works)
        for work in works.values():
            work.kv.close()
    if args.tokens:
        works = {flash: Prefill(peer, max(args.tokens), flash) for flash in flashes}
        for tokens in args.tokens:
            yield rounds(args, path, "prefill", tokens, None, works)
        for work in works.values():
            work.kv.close()
    peer.close()


def machine():
    """The CPU's model and the flags that matter here."""
    lines = dict(line.split(":", 1) for line in open("/proc/cpuinfo") if ":" in line)
    found = {key.strip(): value.strip() for key, value in lines.items()}
    flags = found.get("flags", found.get("Features", "")).split()
    name = found.get("model name", "unknown")
    return {"cpu": name, "cores": os.cpu_count(), "flags": [f for f in FLAGS if f in flags]}


def commit():
    def git(*arguments):
        run = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
        return run.stdout.strip()

    return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")


def table_row(point):
    """A line of the table."""
    if point["what"] == "decode":
        what = f"decode b={point['batch']} c={point['context']}"
    else:
        what = f"prefill {point['tokens']}"

    def cell(figure, digits, unit=""):
        low, middle, high = (f"{figure[key]:.{digits}f}" for key in ["min", "median", "max"])
        return f"{middle}{unit} ({low}-{high})"

    figures = [cell(point["ours_tokens_per_s"], 1), cell(point["llama_cpp_tokens_per_s"], 1)]
    notes = "" if point["flash_attention"] else ", no flash attention"
    notes += f", disturbed: {point['disturbed']} rounds" if point["disturbed"] else ""
    cells = [point["model"], point["dtype"], what + notes, *figures, cell(point["ratio"], 2, "x")]
    return f"| {' | '.join(cells)} |"


def main():
    def numbers(text):
        return [int(part) for part in text.split(",") if part]

    parser = argparse.ArgumentParser(description="trail-rt bench and llama.cpp in turn")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--out", type=Path, required=True, help="the result as JSON")
    parser.add_argument("--program", default=ROOT / "target/release/trail-rt", type=Path)
    parser.add_argument("--batch", type=numbers, default=[1, 8, 16], help='decode; "" for none')
    parser.add_argument("--context", type=numbers, default=[128])
    parser.add_argument("--tokens", type=numbers, default=[128, 512, 2048], help="prefill")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="decode steps in a round")
    parser.add_argument("--prefill-repeats", type=int, default=1, help="prompts in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repack", action="store_true", help="repack our quantized weights")
    parser.add_argument("--kv-dtype", default="f32", help="type of our keys and values")
    parser.add_argument("--others", type=float, default=0.03, help="see above")
    parser.add_argument("--attempts", type=int, default=4, help="of a disturbed round")
    parser.add_argument("--wait", type=float, default=60, help="seconds, for a quiet machine")
    parser.add_argument("--flash-attention", choices=["faster", "on", "off"], default="faster")
    args = parser.parse_args()
    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "threads": args.threads,
        "repack": args.repack,
        "kv_dtype": args.kv_dtype,
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "llama_cpp_system_info": llama_cpp.llama_print_system_info().decode(),
        "ubatch": UBATCH,
        "points": [],
    }
    print("| model | type | what | ours, tokens/s | llama.cpp, tokens/s | ours / llama.cpp |")
    print("|---|---|---|---|---|---|", flush=True)
    for path in args.models:
        for point in points(args, path):
            result["points"].append({"model": path.stem, **point})
            print(table_row(result["points"][-1]), flush=True)
            args.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
