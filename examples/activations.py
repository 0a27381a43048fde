#!/usr/bin/env python3
"""Writes activations.safetensors for example 8: the output of layer 3 (0-based) of the bundled
model for each token of one answer, by transformers.

    pip install torch transformers safetensors
    examples/activations.py
"""

import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

LAYER = 3
SEED = 5
HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "assets" / "demo"


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    turn = [{"role": "user", "content": "Give me a recipe for soup."}]
    prompt = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"]
    with torch.no_grad():
        torch.manual_seed(SEED)
        answer = model.generate(prompt, max_new_tokens=200, do_sample=True)
        # The last token is never fed; the first of the hidden states is the embedding.
        states = model(answer[:, :-1], output_hidden_states=True).hidden_states
    hidden = states[LAYER + 1][0, prompt.shape[1] :].contiguous()
    print(tokenizer.decode(answer[0, prompt.shape[1] :]), tuple(hidden.shape))
    save_file({"hidden": hidden}, HERE / "activations.safetensors")


if __name__ == "__main__":
    main()
