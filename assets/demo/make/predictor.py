"""Prompt-only predictors of the answer length: the bundled one (multinomial logistic regression on
ln(1 + count) of the prompt's token ids), stronger baselines that are only reported, and the table
of all MAEs.

    python assets/demo/make/predictor.py --model assets/demo --work build
"""
import argparse
import json
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

from probe import BINS, MAX, MID, bin_of, countdown_mae


def features(prompts, vocab):
    x = torch.zeros(len(prompts), vocab)
    for i, ids in enumerate(prompts):
        x[i].index_add_(0, torch.tensor(ids), torch.ones(len(ids)))
    return torch.log1p(x)


def logistic(x, y, l2):
    w, b = torch.zeros(BINS, x.shape[1], requires_grad=True), torch.zeros(BINS, requires_grad=True)
    opt = torch.optim.LBFGS([w, b], max_iter=200, history_size=10, line_search_fn="strong_wolfe")

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(x @ w.T + b, y) + l2 * w.square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    return w.detach(), b.detach()


def mlp(x, y, seed, epochs=12):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, BINS)
    )
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
    for _ in range(epochs):
        for j in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(net(x[j]), y[j])
            opt.zero_grad()
            loss.backward()
            opt.step()
    return net.eval()


def points(p):
    """The mean and the median of binned distributions, in tokens."""
    p = torch.as_tensor(p)
    c = p.cumsum(1)
    i = (c < 0.5).sum(1).clamp(max=BINS - 1)
    below = torch.where(
        i > 0, c.gather(1, (i - 1).clamp(min=0)[:, None])[:, 0], torch.zeros(len(p))
    )
    part = (0.5 - below) / p.gather(1, i[:, None])[:, 0].clamp(min=1e-9)
    # the point with the least expected sum of errors over the steps when counted down
    n = MID.clone()
    n[-1] = MAX - 6                                # most of the last bin is answers cut at the cap
    grid = torch.arange(8.0, MAX + 1, 8)[:, None]
    cost = torch.where(n >= grid, (n - grid) * grid + (n - grid) ** 2 / 2, (grid - n) * n)
    best = grid[(p.float() @ cost.T).argmin(1), 0]
    return {
        "mean": (p @ MID).numpy(),
        "median": ((i + part) * MAX / BINS).numpy(),
        "countdown-optimal": best.numpy(),
    }


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    ap.add_argument("--work", default="build")
    ap.add_argument("--seed", type=int, default=41)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    with open(os.path.join(args.work, "probe_answers.json")) as f:
        d = json.load(f)
    with open(os.path.join(args.work, "held.json")) as f:
        h = json.load(f)
    with open(os.path.join(args.model, "config.json")) as f:
        vocab = json.load(f)["vocab_size"]
    z = np.load(os.path.join(args.work, "held_probe.npz"))
    m = len(z["totals"])
    x, n = features(d["prompts"], vocab), torch.tensor([len(a) for a in d["answers"]]).float()
    hx, hn = features(h["prompts"], vocab)[:m], [len(a) for a in h["answers"]][:m]
    y = bin_of(n)
    cut = len(x) // 8
    best = min(
        [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2],
        key=lambda l2: F.cross_entropy(
            (lambda wb: x[:cut] @ wb[0].T + wb[1])(logistic(x[cut:], y[cut:], l2)), y[:cut]
        ).item(),
    )
    w, b = logistic(x, y, best)
    p = (hx @ w.T + b).softmax(1)
    net = mlp(x, y, args.seed)
    with torch.no_grad():
        rows = {
            "logistic on token counts (bundled)": p,
            "MLP on token counts": net(hx).softmax(1),
            "probe on the mean of the prompt": torch.from_numpy(z["p0"]),
            "probe on the last prompt token": torch.from_numpy(z["last"]),
        }
    table = {}
    for name, q in rows.items():
        table[name] = {k: round(countdown_mae(v, hn), 2) for k, v in points(q).items()}
    grid = range(0, MAX + 1, 4)
    const = min(grid, key=lambda c: countdown_mae([c] * len(n), n.int().tolist()))
    table[f"the constant {const}"] = {"best": round(countdown_mae([const] * m, hn), 2)}
    with open(os.path.join(args.work, "probe.json")) as f:
        probe = json.load(f)
    least = min(v for r in table.values() for v in r.values())
    log_p = F.cross_entropy((hx @ w.T + b), bin_of(torch.tensor(hn).float())).item()
    out = {
        "l2": best,
        "training_prompts": len(x),
        "cross_entropy_held": round(log_p, 4),
        "total_length_mae_held": round(float(np.mean(np.abs(points(p)["mean"] - np.array(hn)))), 2),
        "bin_accuracy_held": round(
            float((p.argmax(1) == bin_of(torch.tensor(hn).float())).float().mean()), 4
        ),
        "prompt_only_counted_down": table,
        "best_prompt_only": least,
        "probe_raw": probe["mae_raw"],
        "probe_refined": probe["mae_refined"],
        "best_prompt_only_over_refined": round(least / probe["mae_refined"], 2),
    }
    with open(os.path.join(args.work, "predictor.json"), "w") as f:
        json.dump(out, f, indent=1)
    save_file(
        {"weight": w.contiguous(), "bias": b.contiguous()},
        os.path.join(args.model, "predictor.safetensors"),
        metadata={
            "format": "trail-prompt-predictor",
            "version": "1",
            "max_tokens": str(MAX),
            "bins": str(BINS),
            "vocab_size": str(vocab),
            "training_prompts": str(len(x)),
            "l2": str(best),
        },
    )
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
