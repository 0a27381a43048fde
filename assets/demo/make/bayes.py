"""Bayes error of the corpus: the least MAE over all decode steps of a prompt-only prediction
counted down by one per token, and of one refined with the text so far. Monte Carlo over the
generator, without a model.

Prompt-only: for each prompt, `--draws` answers are drawn and the one number P is taken that does
best over all their steps. Refined: at each token, the median of the remaining length over
`--futures` continuations that share every *complete* segment so far (the current, unfinished
segment only counts down), so it is an upper bound of the Bayes error.

    python assets/demo/make/bayes.py --model assets/demo --work build
"""
import argparse
import json
import os
import random

import numpy as np

import corpus
import gen
import tokenizer as T

MAX = corpus.MAX_TOKENS
FIXED = {"spell", "arith", "sort", "count", "repeat", "times"}


def best_constant(lengths):
    """The P that minimises sum over answers and steps of |max(P - t, 0) - (n - t)|, and its mean
    over steps."""
    n = np.array(lengths)
    top = None
    for p in np.unique(np.r_[n, np.arange(8, MAX + 1, 8)]):
        long = n >= p                              # steps t <= p miss n - p, the others n - t
        e = np.where(long, (n - p) * p + (n - p) * (n - p - 1) / 2.0, (p - n) * n)
        if top is None or e.sum() < top[0]:
            top = (e.sum(), int(p))
    return top[1]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    ap.add_argument("--work", default="build")
    ap.add_argument("--prompts", type=int, default=300)
    ap.add_argument("--draws", type=int, default=300)
    ap.add_argument("--futures", type=int, default=25)
    ap.add_argument("--seed", type=int, default=51)
    args = ap.parse_args()
    tok = T.load(args.model)
    rng = random.Random(args.seed)
    items = gen.draw_prompts("held", args.prompts, args.seed)
    steps = err_prompt = err_refined = 0.0
    per = {}

    def lengths(texts):
        return [len(e.ids) for e in tok.encode_batch(texts)]

    for fam, _, slots, seed in items:
        segs = corpus.answer_segments(fam, slots, seed)
        ends, text = [], ""
        for s in segs:
            text += s
            ends.append(text)
        ends = lengths(ends)
        n = min(ends[-1] + 1, MAX)
        t = np.arange(1, n + 1)
        if fam in FIXED:
            ep = er = 0.0
        else:
            draws = [
                min(x + 1, MAX)
                for x in lengths(
                    [
                        "".join(corpus.answer_segments(fam, slots, rng.getrandbits(48)))
                        for _ in range(args.draws)
                    ]
                )
            ]
            p = best_constant(draws)
            ep = np.abs(np.maximum(p - t, 0) - (n - t)).sum()
            pred = np.zeros(n)
            start = 0
            for j in range(len(segs)):
                if start >= n:
                    break
                futures = []
                for _ in range(args.futures):
                    f = corpus.answer_segments(fam, slots, seed, upto=j, reseed=rng.getrandbits(48))
                    futures.append("".join(f[j:]))
                rest = [min(x + 1, MAX - start) for x in lengths(futures)]
                stop = min(ends[j] if j + 1 < len(segs) else n, n)
                tt = np.arange(start + 1, stop + 1)
                pred[start:stop] = np.maximum(np.median(rest) - (tt - start), 0)
                start = stop
            er = np.abs(pred - (n - t)).sum()
        steps += n
        err_prompt += ep
        err_refined += er
        a = per.setdefault(fam, [0, 0.0, 0.0])
        a[0] += n
        a[1] += ep
        a[2] += er
    out = {
        "prompts": len(items),
        "steps": int(steps),
        "prompt_only_mae": round(err_prompt / steps, 2),
        "refined_mae": round(err_refined / steps, 2),
        "by_family": {
            f: {"prompt_only": round(a[1] / a[0], 1), "refined": round(a[2] / a[0], 1)}
            for f, a in sorted(per.items())
        },
        "method": "Monte Carlo over the generator; refined conditions on complete segments only, so it is an upper bound of the Bayes error",
    }
    with open(os.path.join(args.work, "bayes.json"), "w") as f:
        json.dump(out, f, indent=1)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
