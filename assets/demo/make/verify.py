"""Loads the bundled model with transformers' LlamaForCausalLM in f32, compares it with model.py,
and generates.

    python assets/demo/make/verify.py --model assets/demo --work build
"""
import argparse
import json
import os

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

import model as M
import tokenizer as T


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    ap.add_argument("--work", default="build")
    args = ap.parse_args()
    os.makedirs(args.work, exist_ok=True)
    hf = LlamaForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tok = AutoTokenizer.from_pretrained(args.model)
    own, tk = M.load(args.model), T.load(args.model)
    worst = {"logits": 0.0, "block outputs": 0.0}
    texts = [
        "Count up from 3 to 12.",
        "Write a story about a brave horse named Kurt.",
        "How do I make plum stew?",
    ]
    for text in texts:
        msg = [{"role": "user", "content": text}]
        ids = tok.apply_chat_template(
            msg, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert list(ids) == tk.encode(T.templated(text)).ids, "chat template"
        assert (
            tk.decode(tk.encode(text).ids) == text and tok.decode(tok.encode(text)) == text
        ), "round trip"
        x = torch.tensor([ids])
        with torch.no_grad():
            taps = []
            a = own(x, taps)
            o = hf(x, output_hidden_states=True)
            worst["logits"] = max(worst["logits"], float((a - o.logits).abs().max()))
            for i, t in enumerate(taps[:-1]):
                worst["block outputs"] = max(
                    worst["block outputs"], float((t - o.hidden_states[i + 1]).abs().max())
                )
        torch.manual_seed(5)
        y = hf.generate(
            x,
            max_new_tokens=200,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            attention_mask=torch.ones_like(x),
        )
        print(tok.decode(y[0]), "\n")
    print(worst)
    assert worst["logits"] < 1e-3 and worst["block outputs"] < 1e-3
    with open(os.path.join(args.work, "check.json"), "w") as f:
        json.dump({"largest_difference_to_transformers_f32": worst}, f)


if __name__ == "__main__":
    main()
