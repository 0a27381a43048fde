"""Compares a program's greedy answers on a GGUF file with transformers' in float32.

    gguf_answers.py PROGRAM FILE.gguf TEXT [OPTIONS OF THE PROGRAM]

Transformers runs on the dequantized weights. Prompts are 20 pieces of TEXT, of 10 to 2,000 tokens.
Each answer is fed to transformers as it is, so that one close call does not end the comparison. A
token counts as different if transformers prefers another one by more than NEAR in log probability.
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

LENGTHS = [10, 12, 16, 17, 31, 32, 33, 48, 64, 65]
LENGTHS += [100, 128, 200, 256, 333, 512, 777, 1024, 1500, 2000]
ANSWER = 32
NEAR = 2e-3


def generate(program, model, options, *arguments):
    command = [program, "generate", "--model", model, "--temperature", "0", "--ignore-eos"]
    run = subprocess.run([*command, "--json", *options, *arguments], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    return json.loads(run.stdout)


def main():
    program, file, text, *options = sys.argv[1:]
    words = Path(text).read_text()[:12000]
    whole = generate(program, file, options, "--raw", "--prompt", words, "--max-tokens", "1")
    tokens = whole["prompt_tokens"]
    path = Path(file)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    model.eval()
    worst, different, answered = 0.0, 0, 0
    for index, length in enumerate(LENGTHS):
        prompt = tokens[37 * index : 37 * index + length]
        assert len(prompt) == length, "TEXT is too short"
        ids = ",".join(map(str, prompt))
        answer = generate(program, file, options, "--prompt-ids", ids, "--max-tokens", str(ANSWER))
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer["tokens"]])).logits[0, length - 1 : -1]
        expected = torch.log_softmax(logits, -1)
        chosen = expected[range(ANSWER), answer["tokens"]]
        gap = (torch.tensor(answer["logprobs"]) - chosen).abs().max().item()
        missed = int((expected.max(-1).values - chosen > NEAR).sum())
        worst, different, answered = max(worst, gap), different + missed, answered + ANSWER
        print(f"{length:5} tokens: log probabilities within {gap:.1e}, {missed} tokens differ")
    print(f"{answered - different} of {answered} agree, log probabilities within {worst:.1e}")


main()
