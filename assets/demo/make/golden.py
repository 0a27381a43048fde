"""Writes golden.jsonl: greedy answers of the bundled model by transformers in f32, for .ci/golden.py.

    python assets/demo/make/golden.py --model assets/demo

A prompt is kept if the two most likely tokens are never closer than MARGIN: a thousand times what
the order of f32 sums moves a logit by, so that every machine must give the same tokens.
"""
import argparse
import json

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

PROMPTS, TOKENS, MARGIN = 8, 48, 0.01


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    args = ap.parse_args()
    model = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = []
    for line in open(f"{args.model}/prompts.jsonl"):
        prompt = json.loads(line)["prompt"]
        message = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        with torch.no_grad():
            run = model.generate(
                torch.tensor([ids]),
                max_new_tokens=TOKENS,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
        best = [scores[0].topk(2).values for scores in run.scores]
        if min(float(first - second) for first, second in best) < MARGIN:
            continue
        tokens = run.sequences[0][len(ids) :].tolist()
        lines.append(json.dumps({"prompt": prompt, "prompt_tokens": ids, "tokens": tokens}))
        if len(lines) == PROMPTS:
            break
    with open(f"{args.model}/golden.jsonl", "w") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
