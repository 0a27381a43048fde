#!/usr/bin/env python3
"""Greedy answers of a program on the bundled model against those of transformers.

    .ci/golden.py PROGRAM...    with its emulator before it, such as `wine64 trail-rt.exe`

Prints the number of tokens compared; exits with 1 and the first difference.
"""
import json
import subprocess
import sys

OPTIONS = ["--compute", "exact", "--threads", "2", "--temperature", "0", "--json"]


def main():
    compared = 0
    for line in open("assets/demo/golden.jsonl"):
        golden = json.loads(line)
        length = str(len(golden["tokens"]))
        prompt = ["--prompt", golden["prompt"], "--max-tokens", length]
        command = [*sys.argv[1:], "generate", *OPTIONS, *prompt]
        answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for key in ["prompt_tokens", "tokens"]:
            if answer[key] != golden[key]:
                sys.exit(f"{golden['prompt']!r}: {key} {answer[key]}, expected {golden[key]}")
        compared += len(golden["tokens"])
    print(f"{compared} tokens as by transformers")


if __name__ == "__main__":
    main()
