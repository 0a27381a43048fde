"""A server alone, and behind `trail-rt proxy`: latencies under the same load, interleaved.

    llama-server -m MODEL.gguf --parallel 4 --port 8080
    trail-rt proxy --upstream http://127.0.0.1:8080 --slots 4
    python3 proxy.py --prompts PROMPTS.jsonl --requests 100 --rounds 3 --out FILE.json

The proxy has learned lengths before, from requests like those with other prompts, and was started
again with that --predictor. The first run measures the server's capacity with all requests at once.
Each round has its own prompts, arrivals
and seeds of answers, the same for both; which of the two goes first alternates, since a server may
keep the prompts of the run before. Load and figures are those of `trail-rt bench http`. Prints one
JSON object: per load and round both runs, and the ratios of their means over the rounds.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile


def bench(args, url, prompts, seed, rate):
    """One run's JSON, with the capacity if no rate is given."""
    load = ["--rate-share", "1"] if rate is None else ["--rate", f"{rate:.4f}"]
    command = [args.program, "bench", "http", "--json", "--url", url, "--prompts", str(prompts)]
    command += ["--requests", str(args.requests), "--max-tokens", str(args.max_tokens)]
    command += ["--temperature", str(args.temperature)]
    command += ["--seed", str(seed), "--timeout", "3600", *load]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def figures(report):
    """Returns the compared figures of a run."""
    run = report["runs"][0]
    return {
        "mean_s": run["latency_s"]["mean"],
        "p50_s": run["latency_s"]["p50"],
        "p99_s": run["latency_s"]["p99"],
        "ttft_mean_s": run["ttft_s"]["mean"],
        "tokens_per_s": run["tokens_per_s"],
        "failed": run["failed"],
    }


def ratios(rounds):
    """Mean latency of the server alone over that behind the proxy, and p99 the other way round."""
    mean = lambda name, of: statistics.fmean(one[name][of] for one in rounds)
    return {
        "mean_gain": mean("alone", "mean_s") / mean("proxy", "mean_s"),
        "mean_gain_by_round": [one["alone"]["mean_s"] / one["proxy"]["mean_s"] for one in rounds],
        "p99_ratio": mean("proxy", "p99_s") / mean("alone", "p99_s"),
        "p99_ratio_by_round": [one["proxy"]["p99_s"] / one["alone"]["p99_s"] for one in rounds],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", default="http://127.0.0.1:8080")
    parser.add_argument("--proxy", default="http://127.0.0.1:8000")
    parser.add_argument("--prompts", type=pathlib.Path, required=True)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--loads", default="1.1,1.5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--capacity", type=float, help="requests a second, if it is known")
    parser.add_argument("--program", default="trail-rt")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    lines = args.prompts.read_text().splitlines()
    report = {"requests": args.requests, "max_tokens": args.max_tokens}
    report |= {"temperature": args.temperature, "loads": {}}
    with tempfile.TemporaryDirectory() as folder:

        def prompts(index):
            """A file of the prompts of run `index`."""
            first = index * args.requests % max(1, len(lines) - args.requests)
            file = pathlib.Path(folder) / f"{index}.jsonl"
            file.write_text("\n".join(lines[first : first + args.requests]) + "\n")
            return file

        report["capacity"] = args.capacity
        if args.capacity is None:
            measured = bench(args, args.alone, prompts(0), 0, None)
            report["capacity"] = measured["capacity_requests_per_s"]
        loads = [float(load) for load in args.loads.split(",")]
        # A load after the other: the bound on waits remembers the backlog of minutes.
        for place, load in enumerate(loads):
            for at in range(args.rounds):
                index = 1 + at + place * args.rounds
                file, rate, one = prompts(index), load * report["capacity"], {}
                urls = {"alone": args.alone, "proxy": args.proxy}
                for name in sorted(urls, reverse=index % 2 == 1):
                    one[name] = figures(bench(args, urls[name], file, index, rate))
                of_load = report["loads"].setdefault(str(load), {"rounds": []})
                of_load["rounds"].append(one)
                of_load.update(ratios(of_load["rounds"]))
                if args.out:
                    args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
