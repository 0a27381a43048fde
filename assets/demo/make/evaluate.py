"""Answers to held-out prompts at temperature 1: success by family, how many stop by themselves, the
length shape.

    python assets/demo/make/evaluate.py --model assets/demo --prompts 1200 --work build
"""
import argparse
import collections
import json
import os
import time

import numpy as np

import checks
import corpus
import gen
import tokenizer as T

DECILES = [10, 25, 50, 75, 90]


def length_shape(lengths, ended):
    n = np.array(lengths)
    share = np.histogram(n, bins=np.linspace(0, 512, 11))[0] / len(n)
    return {
        "mean": round(float(n.mean()), 1),
        "deciles_10_25_50_75_90": [int(x) for x in np.percentile(n, DECILES)],
        "cv": round(float(n.std() / n.mean()), 3),
        "bin_shares": [round(float(x), 3) for x in share],
        "stop_by_themselves": round(float(np.mean(ended)), 4),
    }


def judge(items, answers, tok):
    """Per family: [n, ok, ended], and the reasons of the failures."""
    per, why = collections.defaultdict(lambda: [0, 0, 0]), collections.defaultdict(list)
    for (fam, prompt, slots, _), ids in zip(items, answers):
        ended = ids[-1] == T.EOS
        text = tok.decode(ids[:-1] if ended else ids)
        bad = checks.check(fam, slots, text, ended)
        per[fam][0] += 1
        per[fam][1] += bad is None
        per[fam][2] += ended
        if bad:
            why[fam].append([bad, prompt, text])
    return per, why


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    ap.add_argument("--work", default="build")
    ap.add_argument("--prompts", type=int, default=1200)
    ap.add_argument("--seed", type=int, default=21)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--show", type=int, default=0)
    args = ap.parse_args()
    os.makedirs(args.work, exist_ok=True)
    tok = T.load(args.model)
    items = gen.draw_prompts("held", args.prompts, args.seed)
    ids = gen.encode_prompts(tok, items)
    t = time.time()
    answers = gen.generate_on(args.threads, args.model, ids, args.seed, report=True)
    print(f"{time.time() - t:.0f} s", flush=True)
    with open(os.path.join(args.work, "held.json"), "w") as f:
        json.dump({"items": items, "prompts": ids, "answers": answers}, f)
    per, why = judge(items, answers, tok)
    ended = [a[-1] == T.EOS for a in answers]
    out = {
        "prompts": len(items),
        "temperature": 1.0,
        "max_tokens": corpus.MAX_TOKENS,
        "success": {
            f: {
                "n": v[0],
                "rate": round(v[1] / v[0], 3),
                "stop_by_themselves": round(v[2] / v[0], 3),
            }
            for f, v in sorted(per.items())
        },
        "success_overall": round(sum(v[1] for v in per.values()) / len(items), 4),
        "length": length_shape([len(a) for a in answers], ended),
    }
    with open(os.path.join(args.work, "evaluate.json"), "w") as f:
        json.dump(out, f, indent=1)
    print(json.dumps(out, indent=1))
    for f, w in why.items():
        for bad, prompt, text in w[:args.show]:
            print(
                "---",
                f,
                "|",
                bad,
                "|",
                prompt,
                "|",
                text[:300].replace("\n", "/"),
                "...",
                text[-100:].replace("\n", "/"),
            )


if __name__ == "__main__":
    main()
