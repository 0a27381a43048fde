"""Trains the remaining-length probe on the model's own answers, picks the layer, and reports every
MAE.

    python assets/demo/make/probe.py --model assets/demo --work build --prompts 4400

Convention: an answer has N tokens, the end mark counted as the N-th, N at most max_tokens. The
activation at output token t (1..N) has the label N - t; the last prompt position and the mean over
the prompt have the label N.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

import corpus
import gen
import model as M
import tokenizer as T

BINS, MAX = 10, corpus.MAX_TOKENS
WIDTH = MAX / BINS
MID = torch.tensor([WIDTH * (i + 0.5) for i in range(BINS)])
MIX = 1e-6


def bin_of(n):
    return (n / WIDTH).long().clamp(max=BINS - 1)


def smooth(p0, p, steps=None):
    """The filter, batched: p0 [b, 10], p [b, n, 10] -> q [b, n, 10]. Every row is one answer."""
    q, out = p0, []
    for t in range(p.shape[1]):
        up = torch.cat([q[:, 1:], torch.zeros_like(q[:, :1])], 1) / WIDTH
        prior = q * (1 - 1 / WIDTH) + up
        prior[:, 0] += q[:, 0] / WIDTH
        prior = prior * (1 - MIX) + MIX / BINS
        q = prior * p[:, t]
        q = q / q.sum(1, keepdim=True)
        out.append(q)
    return torch.stack(out, 1)


class Head(nn.Module):
    def __init__(self, d, mean, std):
        super().__init__()
        self.hidden, self.output = nn.Linear(d, 512), nn.Linear(512, BINS)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return self.output(F.relu(self.hidden((x - self.mean) / self.std)))

    @torch.no_grad()
    def folded(self):
        """The same function as plain Linear -> ReLU -> Linear on the raw activation."""
        w = self.hidden.weight / self.std
        return {
            "hidden.weight": w.contiguous(),
            "hidden.bias": (self.hidden.bias - w @ self.mean).contiguous(),
            "output.weight": self.output.weight.detach().clone(),
            "output.bias": self.output.bias.detach().clone(),
        }


def fit(x, y, w, epochs, seed, lr=2e-3, batch=2048, half=False, log=None):
    """AdamW, cosine to zero. y: remaining tokens; w: row weights. Cross-entropy on the bin."""
    torch.manual_seed(seed)
    n = len(x)
    sub = x[torch.randperm(n)[:50000]].float()
    head = Head(x.shape[1], sub.mean(0), sub.std(0) + 1e-3)
    opt = torch.optim.AdamW(head.parameters(), lr=lr, weight_decay=0.01)
    steps = epochs * (n // batch)
    k = 0
    for e in range(epochs):
        order, total = torch.randperm(n), 0.0
        for i in range(0, n - batch + 1, batch):
            j = order[i:i + batch]
            for g in opt.param_groups:
                g["lr"] = lr * min(1, (k + 1) / 100) * 0.5 * (1 + np.cos(np.pi * k / steps))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                z = head(x[j].float())
            z = z.float()
            loss = F.cross_entropy(z, bin_of(y[j]), reduction="none")
            loss = (loss * w[j]).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
            k += 1
        if log:
            log(f"  epoch {e + 1}/{epochs} loss {total / (n // batch):.4f}")
    return head


class Taps:
    """Activations of answers, rows of every answer one after another (row 0 = last prompt
    position), f32 or, to save memory while training, f16."""
    def __init__(self, net, prompts, answers, layers, dtype=torch.float32, ranks=1):
        self.layers = layers
        lens = np.array([len(a) + 1 for a in answers])
        self.start = np.concatenate([[0], np.cumsum(lens)])
        d = net.cfg["hidden_size"]
        self.x = torch.empty(len(layers), int(self.start[-1]), d, dtype=dtype)
        self.mean = torch.empty(len(layers), len(answers), d)
        parts = [range(r, len(answers), ranks) for r in range(ranks)]
        if ranks == 1:
            self.fill(net, prompts, answers, parts[0])
        else:
            self.x.share_memory_()
            self.mean.share_memory_()
            # safe: this process runs single-threaded
            ctx = torch.multiprocessing.get_context("fork")
            jobs = [ctx.Process(target=self.fill, args=(net, prompts, answers, p)) for p in parts]
            for j in jobs:
                j.start()
            for j in jobs:
                j.join()
                assert j.exitcode == 0
        assert bool(torch.isfinite(self.x[:, ::97]).all())
        self.owner = np.repeat(np.arange(len(answers)), lens)
        self.rem = torch.from_numpy(
            np.concatenate([np.arange(n - 1, -1, -1) for n in lens])
        ).float()
        self.total = torch.from_numpy(lens - 1).float()

    def fill(self, net, prompts, answers, part):
        part = list(part)
        for i, mean, act in gen.tap(
            net, [prompts[k] for k in part], [answers[k] for k in part], self.layers
        ):
            k = part[i]
            self.x[:, self.start[k]:self.start[k + 1]] = torch.from_numpy(act).to(self.x.dtype)
            self.mean[:, k] = torch.from_numpy(mean)

    def training(self, layer, keep, stride=1, mean_weight=0.05, seed=0):
        """Rows of the kept answers (every stride-th, at random), and their prompt means with
        `mean_weight` of the mass."""
        i = self.layers.index(layer)
        rows = keep[self.owner]
        if stride > 1:
            rows &= np.random.default_rng(seed).random(len(rows)) < 1 / stride
        rows = torch.from_numpy(np.flatnonzero(rows))
        m = torch.from_numpy(np.flatnonzero(keep))
        x, y = self.x[i][rows], self.rem[rows]
        xm, ym = self.mean[i][m].to(x.dtype), self.total[m]
        # Each mean is repeated, so that the weight of one row stays small.
        times = 8
        w = torch.cat(
            [
                torch.ones(len(x)),
                torch.full((len(xm) * times,), mean_weight * len(x) / (len(xm) * times)),
            ]
        )
        return torch.cat([x] + [xm] * times), torch.cat([y] + [ym] * times), w


@torch.no_grad()
def figures(head, taps, layer, who, scale=1.0):
    """Raw and refined MAE over all decode steps of the answers in `who`, and the pieces to go on
    with."""
    i = taps.layers.index(layer)
    n_max = int(taps.total[torch.tensor(who)].max())
    p = torch.full((len(who), n_max, BINS), 1 / BINS)
    mask = torch.zeros(len(who), n_max, dtype=torch.bool)
    rem = torch.zeros(len(who), n_max)
    last = torch.zeros(len(who), BINS)
    for r, k in enumerate(who):
        n = int(taps.total[k])
        a = int(taps.start[k])
        z = (head(taps.x[i, a:a + n + 1].float()) * scale).softmax(1)
        last[r], p[r, :n], mask[r, :n] = z[0], z[1:], True
        rem[r, :n] = n - torch.arange(1, n + 1)
    p0 = (head(taps.mean[i][torch.tensor(who)]) * scale).softmax(1)
    q = smooth(p0, p)
    raw, ref = p @ MID, q @ MID
    acc = (p.argmax(-1) == bin_of(rem))[mask].float().mean()
    return {
        "raw": float((raw - rem).abs()[mask].mean()),
        "refined": float((ref - rem).abs()[mask].mean()),
        "accuracy": float(acc),
        "p0": p0,
        "last": last,
        "rem": rem,
        "mask": mask,
        "refined_values": ref,
        "raw_values": raw,
    }


def countdown_mae(pred, totals):
    """MAE over all decode steps of a prediction of the total, counted down by one per token, at
    least 0."""
    err = cnt = 0.0
    for p, n in zip(np.asarray(pred, float), np.asarray(totals, int)):
        t = np.arange(1, n + 1)
        err += np.abs(np.maximum(p - t, 0) - (n - t)).sum()
        cnt += n
    return err / cnt


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    ap.add_argument("--work", default="build")
    ap.add_argument("--prompts", type=int, default=4400)
    ap.add_argument("--seed", type=int, default=31)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--stage", default="all", choices=["all", "generate", "fit"])
    ap.add_argument(
        "--held",
        type=int,
        default=800,
        help="held-out prompts for the final figures (from evaluate.py)",
    )
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--layer-epochs", type=int, default=5)
    ap.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="factor on the logits, folded into output.*; 0: the best on validation",
    )
    args = ap.parse_args()
    torch.set_num_threads(1)                 # --threads are processes here
    os.makedirs(args.work, exist_ok=True)
    tok, net = T.load(args.model), M.load(args.model)
    start = time.time()

    def say(*a):
        print(f"[{time.time() - start:6.0f} s]", *a, flush=True)

    path = os.path.join(args.work, "probe_answers.json")
    if args.stage != "fit":
        items = gen.draw_prompts("probe", args.prompts, args.seed)
        ids = gen.encode_prompts(tok, items)
        answers = gen.generate_on(args.threads, args.model, ids, args.seed, report=True)
        say(sum(map(len, answers)), "tokens generated")
        with open(path, "w") as f:
            json.dump({"items": items, "prompts": ids, "answers": answers}, f)
        if args.stage == "generate":
            return
    with open(path) as f:
        d = json.load(f)
    prompts, answers = d["prompts"], d["answers"]
    n = len(prompts)
    perm = np.random.default_rng(args.seed).permutation(n)
    train = np.zeros(n, bool)
    train[perm[n // 8:]] = True
    val = [int(k) for k in perm[:n // 8]]
    L = net.cfg["num_hidden_layers"]
    say(n, "answers,", sum(map(len, answers)), "tokens")

    # which layer: a quarter of the training rows, full validation rows, a short training each
    full = Taps(net, prompts, answers, list(range(L)), torch.float16, args.threads)
    say("rows", tuple(full.x.shape))
    table = []
    for layer in range(L):
        head = fit(
            *full.training(layer, train, 4, seed=args.seed),
            epochs=args.layer_epochs,
            seed=args.seed,
            half=True,
        )
        g = figures(head, full, layer, val)
        table.append(
            {
                "layer": layer,
                "raw": round(g["raw"], 2),
                "refined": round(g["refined"], 2),
                "bin_accuracy": round(g["accuracy"], 4),
            }
        )
        say(table[-1])
    # The earliest layer that is nearly as good as the best, so that more layers above it hide the
    # probe's work.
    least = min(r["raw"] for r in table)
    best = next(r["layer"] for r in table if r["raw"] <= 1.05 * least)
    data = full.training(best, train)
    head = fit(*data, epochs=args.epochs, seed=args.seed, log=say)
    scales = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05]
    tried = [(s, figures(head, full, best, val, s)) for s in scales]
    for s, g in tried:
        say("scale", s, "raw", round(g["raw"], 2), "refined", round(g["refined"], 2))
    scale = args.scale or min(tried, key=lambda x: x[1]["refined"])[0]
    state = head.folded()
    state["output.weight"] = (state["output.weight"] * scale).contiguous()
    state["output.bias"] = (state["output.bias"] * scale).contiguous()

    with open(os.path.join(args.work, "held.json")) as f:
        h = json.load(f)
    hp, ha = h["prompts"][:args.held], h["answers"][:args.held]
    ht = Taps(net, hp, ha, [best], ranks=args.threads)
    who = list(range(len(hp)))
    g1, g = figures(head, ht, best, who), figures(head, ht, best, who, scale)
    np.savez(
        os.path.join(args.work, "held_probe.npz"),
        p0=g["p0"],
        last=g["last"],
        p0_unscaled=g1["p0"],
        last_unscaled=g1["last"],
        totals=[len(a) for a in ha],
    )
    dead = {
        k: float((g["refined_values"] - g["rem"]).abs()[:, a:b][g["mask"][:, a:b]].mean())
        for k, a, b in [
            ("steps 1-16", 0, 16),
            ("steps 17-64", 16, 64),
            ("steps 65-256", 64, 256),
            ("steps 257-512", 256, 512),
        ]
    }
    out = {
        "layer": best,
        "layers_validation": table,
        "training_prompts": int(train.sum()),
        "validation_prompts": len(val),
        "training_rows": int(len(data[0])),
        "logit_scale": scale,
        "validation_by_scale": {
            str(s): {"raw": round(x["raw"], 2), "refined": round(x["refined"], 2)} for s, x in tried
        },
        "epochs": args.epochs,
        "held_prompts": len(hp),
        "held_steps": int(g["mask"].sum()),
        "mae_raw": round(g["raw"], 2),
        "mae_raw_before_scale": round(g1["raw"], 2),
        "bin_accuracy": round(g["accuracy"], 4),
        "mae_refined": round(g["refined"], 2),
        "mae_refined_before_scale": round(g1["refined"], 2),
        "mae_refined_by_step": {k: round(v, 2) for k, v in dead.items()},
        "minutes": round((time.time() - start) / 60, 1),
    }
    with open(os.path.join(args.work, "probe.json"), "w") as f:
        json.dump(out, f, indent=1)
    d = net.cfg["hidden_size"]
    save_file(
        state,
        os.path.join(args.model, "probe.safetensors"),
        metadata={
            "format": "trail-probe",
            "version": "1",
            "layer": str(best),
            "max_tokens": str(MAX),
            "bins": str(BINS),
            "hidden_size": str(d),
            "training_prompts": str(out["training_prompts"]),
            "training_rows": str(out["training_rows"]),
            "epochs": str(args.epochs),
            "seed": str(args.seed),
            "logit_scale": str(scale),
            "mae_raw": str(out["mae_raw"]),
            "mae_refined": str(out["mae_refined"]),
        },
    )
    say(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
