"""The floor of `trail-rt probe train`: the same recipe in PyTorch on the same activations.

    python benches/peers/probe_training.py DATA --layer 19 [--epochs 16] [--seed 1]

DATA is a folder that `trail-rt probe collect` made. Split, weights of the rows, dropout, AdamW and
its cosine are those of the default recipe with a head of bins and the activation alone; the random
numbers are PyTorch's. Prints the validation loss and mean absolute error of the best epoch, to be
compared with the table of `trail-rt probe train --data DATA --layers 19 --head bins --inputs
activation --out FILE`.
"""
import argparse
import glob
import json
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open

BINS = 10
MASK = (1 << 64) - 1


def mix(value):
    """The output function of splitmix64, by which requests are split."""
    z = (value + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def weights_of(request, generated, fed):
    """The steps that each row represents, and its share of its answer, by steps and age."""
    steps = np.zeros(len(request))
    share = np.zeros(len(request))
    for answer in np.unique(request):
        rows = np.flatnonzero(request == answer)
        middles = 0.5 * (generated[rows[1:]] + generated[rows[:-1]])
        edges = np.concatenate([[0.5], middles, [fed[answer] + 0.5]])
        steps[rows] = np.diff(edges)
        by_age = steps[rows] / generated[rows]
        share[rows] = by_age / by_age.sum()
    return steps, share


def load(folder, layer):
    """Rows, prompt means, remaining tokens, steps and shares of the rows, and lengths: of the
    training, of the validation."""
    sides = {kept: ([], [], [], [], [], []) for kept in (False, True)}
    for path in sorted(glob.glob(os.path.join(folder, "shard-*.safetensors"))):
        with safe_open(path, "pt") as f:
            tensor = {name: f.get_tensor(name) for name in f.keys()}
        ends = tensor["answer.ends"].numpy().astype(np.int64)
        total = np.diff(np.concatenate([[0], ends]))
        request = tensor["row.request"].numpy().astype(np.int64)
        generated = tensor["row.generated"].numpy().astype(np.int64)
        steps, share = weights_of(request, generated, total - 1)
        index = tensor["request.index"].numpy().astype(np.int64)
        kept = np.array([mix(1 ^ mix(int(i))) % 8 == 0 for i in index])
        for side in sides:
            of_rows = torch.from_numpy(kept[request] == side)
            of_requests = torch.from_numpy(kept == side)
            x, means, remaining, of_steps, shares, totals = sides[side]
            x.append(tensor[f"rows.{layer}"][of_rows].float())
            means.append(tensor[f"means.{layer}"][of_requests].float())
            remaining.append(torch.from_numpy(total[request] - generated)[of_rows])
            of_steps.append(torch.from_numpy(steps).float()[of_rows])
            shares.append(torch.from_numpy(share).float()[of_rows])
            totals.append(torch.from_numpy(total)[of_requests])
    return {side: [torch.cat(part) for part in parts] for side, parts in sides.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--patience", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    with open(os.path.join(args.data, "collection.json")) as f:
        width = json.load(f)["max_tokens"] / BINS
    sides = load(args.data, args.layer)
    x, means, remaining, _, weights, totals = sides[False]
    held, _, held_remaining, held_steps, held_shares, _ = sides[True]
    bin_of = lambda tokens: (tokens / width).long().clamp(max=BINS - 1)
    middles = torch.tensor([width * (i + 0.5) for i in range(BINS)])

    share = 0.05
    count = len(x) + len(means)
    weights = weights * (1 - share) * count / weights.sum()
    prompt_weights = torch.full((len(means),), share * count / len(means))
    inputs = torch.cat([x, means])
    labels = torch.cat([bin_of(remaining), bin_of(totals)])
    weights = torch.cat([weights, prompt_weights])
    some = inputs[torch.randperm(count)[:50000]]
    mean, deviation = some.mean(0), some.std(0) + 1e-3
    inputs, held = (inputs - mean) / deviation, (held - mean) / deviation

    net = nn.Sequential(
        nn.Dropout(0.3), nn.Linear(inputs.shape[1], 512), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(512, BINS),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.rate, weight_decay=0.01)
    steps, step = args.epochs * -(-count // args.batch), 0
    best, begin = None, time.time()
    for epoch in range(1, args.epochs + 1):
        net.train()
        for rows in torch.randperm(count).split(args.batch):
            for group in optimizer.param_groups:
                group["lr"] = args.rate * 0.5 * (1 + np.cos(np.pi * step / steps))
            loss = F.cross_entropy(net(inputs[rows]), labels[rows], reduction="none")
            optimizer.zero_grad()
            (loss * weights[rows]).mean().backward()
            optimizer.step()
            step += 1
        net.eval()
        with torch.no_grad():
            logits = net(held)
            losses = F.cross_entropy(logits, bin_of(held_remaining), reduction="none")
            errors = (logits.softmax(1) @ middles - held_remaining).abs()
        mean_of = lambda values, weights: float((values * weights).sum() / weights.sum())
        loss, mae = mean_of(losses, held_shares), mean_of(errors, held_steps)
        result = {"epoch": epoch, "loss": loss, "mae": mae}
        best = min([result] + ([best] if best else []), key=lambda result: result["loss"])
        if epoch >= best["epoch"] + args.patience:
            break
    report = {"layer": args.layer, "seed": args.seed, "torch": torch.__version__}
    print(json.dumps({**report, **best, "seconds": round(time.time() - begin, 1)}))


if __name__ == "__main__":
    main()
