"""Trains the demo language model on fresh samples of corpus.py (CPU, bf16 autocast, Muon + AdamW).

    python assets/demo/make/train.py --out assets/demo --tokens 40e6

Loss on the answer's tokens only. Prompts whose hash says 'held' or 'probe' are never seen. The
learning rate goes up over the first 2 %, stays, and falls linearly over the last part (`--decay`)
(`--minutes` measures progress by the clock instead). `--ranks 2` runs two single-threaded processes
that average their gradients once a step: on a busy machine that is much faster than two threads
that meet after every operation. Families of short answers are drawn more often than when served
(`BOOST`); that changes nothing in what follows a given prompt.
"""
import argparse
import json
import math
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import corpus
import model as M
import tokenizer as T

LENGTHS = [64, 128, 224, 352, 576]
FINE = 32                 # bins of the auxiliary head
BOOST = {"spell": 10, "arith": 10, "qa": 8, "sort": 10, "count": 3, "times": 3, "repeat": 2}


def batches(tok, seed, tokens, crop):
    """Endless (ids, targets) of about `tokens` padded tokens; targets are -100 outside the
    answer."""
    rng = random.Random(seed)
    names = list(corpus.FAMILIES)
    weights = [corpus.FAMILIES[n][0] * BOOST.get(n, 1) for n in names]
    buckets = {n: [] for n in LENGTHS}
    ready = []
    while True:
        texts = []
        for _ in range(512):
            _, p, _, r = corpus.sample(rng, family=rng.choices(names, weights)[0])
            texts += [T.templated(p), r]
        enc = tok.encode_batch(texts)
        for i in range(0, len(enc), 2):
            p, r = enc[i].ids, enc[i + 1].ids + [T.EOS]
            total = min(len(r), corpus.MAX_TOKENS)
            r = r[:corpus.CUT]
            if len(p) + len(r) > LENGTHS[3] and rng.random() < crop:
                # only the beginning of some long answers: more prompts per second
                r = r[:LENGTHS[2] - len(p)]
            n = len(p) + len(r) - 1
            size = next((x for x in LENGTHS if x >= n), LENGTHS[-1])
            ids = (p + r)[:size + 1]
            x = ids[:-1] + [T.EOS] * (size - len(ids) + 1)
            y = [-100] * (len(p) - 1) + ids[len(p):]
            y += [-100] * (size - len(y))
            z = [-100] * (len(p) - 1) + [
                max(total - t, -100) if total >= t else -100 for t in range(len(x) - len(p) + 1)
            ]
            z = [a if i < len(p) + len(r) else -100 for i, a in enumerate(z)]
            b = buckets[size]
            b.append((x, y, z))
            if len(b) >= tokens // size:
                ready.append(tuple(torch.tensor([s[i] for s in b]) for i in range(3)))
                buckets[size] = []
        rng.shuffle(ready)
        while len(ready) > 8:
            yield ready.pop()


def orthogonalise(g):
    """Newton-Schulz iteration of Muon on a stack of matrices."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if flip else x).float()


class Muon:
    def __init__(self, params, momentum=0.95, rank=0, ranks=1):
        self.rank, self.ranks = rank, ranks
        self.groups = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buf = {s: torch.zeros(len(ps), *s) for s, ps in self.groups.items()}
        self.momentum = momentum

    @torch.no_grad()
    def step(self, lr, decay):
        updates = []
        # every rank makes its share of the updates
        for shape, ps in self.groups.items():
            u = torch.zeros(len(ps), *shape)
            a, b = len(ps) * self.rank // self.ranks, len(ps) * (self.rank + 1) // self.ranks
            g, buf = torch.stack([p.grad for p in ps[a:b]]), self.buf[shape][a:b]
            buf.lerp_(g, 1 - self.momentum)
            u[a:b] = orthogonalise(g.lerp(buf, self.momentum)) * max(1, shape[0] / shape[1]) ** 0.5
            updates.append(u)
        if self.ranks > 1:
            flat = torch.cat([u.view(-1) for u in updates])
            dist.all_reduce(flat)
            updates = [
                x.view_as(u) for x, u in zip(flat.split([u.numel() for u in updates]), updates)
            ]
        for (shape, ps), u in zip(self.groups.items(), updates):
            for p, d in zip(ps, u):
                p.mul_(1 - lr * decay).add_(d, alpha=-lr)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="assets/demo")
    ap.add_argument(
        "--tokens", type=float, default=40e6, help="tokens to train on (padding counted)"
    )
    ap.add_argument(
        "--minutes", type=float, default=0, help="measure progress by the clock instead"
    )
    ap.add_argument("--batch", type=int, default=12288, help="tokens per step")
    ap.add_argument(
        "--lr", type=float, default=0.02, help="Muon's rate; AdamW's is a quarter of it"
    )
    ap.add_argument(
        "--decay", type=float, default=0.45, help="share of the run over which the rate falls"
    )
    ap.add_argument(
        "--aux",
        type=float,
        default=0.15,
        help="weight of the auxiliary remaining-length loss at block --tap",
    )
    ap.add_argument("--tap", type=int, default=3)
    ap.add_argument(
        "--crop",
        type=float,
        default=0.5,
        help="share of the long answers trained on their first 224 tokens only",
    )
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--ranks", type=int, default=1, help="data-parallel processes")
    ap.add_argument("--resume", default="", help="start from this folder's weights")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--every", type=float, default=300, help="seconds between checkpoints")
    args = ap.parse_args()
    if args.ranks > 1:
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(29500 + os.getpid() % 1000),
            OMP_NUM_THREADS="1",
        )
        torch.multiprocessing.spawn(run, (args,), args.ranks)
    else:
        run(0, args)


def run(rank, args):
    if args.ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
        args.threads = 1
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tok = T.load(args.out)
    net = M.load(args.resume).train() if args.resume else M.Llama()
    n_params = sum(p.numel() for p in net.parameters())
    mats = [p for n, p in net.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in net.named_parameters() if p.ndim != 2 or "embed" in n]
    aux = torch.nn.Linear(net.cfg["hidden_size"], FINE)
    aux.weight.data.mul_(0.1)
    rest += list(aux.parameters())
    muon, adam = Muon(mats, rank=rank, ranks=args.ranks), torch.optim.AdamW(
        rest, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0
    )
    fwd = torch.compile(net, dynamic=False) if args.compile else net
    start, seen, step, saved, log = time.time(), 0, 0, time.time(), []
    ema = None
    for x, y, z in batches(tok, args.seed * 1000 + rank, args.batch // args.ranks, args.crop):
        frac = (time.time() - start) / 60 / args.minutes if args.minutes else seen / args.tokens
        if args.ranks > 1:
            f = torch.tensor([frac])
            dist.broadcast(f, 0)
            frac = f.item()
        if frac >= 1:
            break
        lr = args.lr * min(1, frac / 0.02 + 0.02) * min(1, (1 - frac) / args.decay + 0.01)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, mid = fwd(x, tap=args.tap)
            guess = aux(mid)
        keep = y.view(-1) >= 0
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1])[keep].float(), y.view(-1)[keep])
        live = z.view(-1) >= 0
        side = F.cross_entropy(
            guess.view(-1, FINE)[live].float(), (z.view(-1)[live] * FINE // (corpus.MAX_TOKENS + 1))
        )
        (loss + args.aux * side).backward()
        if args.ranks > 1:
            both = list(net.parameters()) + list(aux.parameters())
            flat = torch.cat([p.grad.view(-1) for p in both])
            dist.all_reduce(flat)
            flat /= args.ranks
            for p, g in zip(both, flat.split([p.numel() for p in both])):
                p.grad.copy_(g.view_as(p))
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        muon.step(lr, 0.02)
        for g in adam.param_groups:
            g["lr"] = lr / 4
        adam.step()
        net.zero_grad(set_to_none=True)
        aux.zero_grad(set_to_none=True)
        seen += x.numel() * args.ranks
        step += 1
        ema2 = side.item() if ema is None else 0.98 * ema2 + 0.02 * side.item()
        ema = loss.item() if ema is None else 0.98 * ema + 0.02 * loss.item()
        if step % 20 == 0 and rank == 0:
            t = time.time() - start
            print(
                f"step {step} tokens {seen / 1e6:.2f}M loss {ema:.4f} aux {ema2:.3f} lr {lr:.4f} {seen / t:.0f} tok/s {t / 60:.1f} min",
                flush=True,
            )
            log.append([seen, round(ema, 4)])
        if rank == 0 and time.time() - saved > args.every:
            M.save(net, args.out)
            saved = time.time()
    if rank:
        return
    M.save(net, args.out)
    facts = {
        "parameters": n_params,
        "tokens": seen,
        "steps": step,
        "final_loss": round(ema, 4),
        "minutes": round((time.time() - start) / 60, 1),
        "seed": args.seed,
        "lr": args.lr,
        "batch_tokens": args.batch,
        "threads": args.threads * args.ranks,
        "resumed": bool(args.resume),
        "torch": torch.__version__,
        "loss_curve": log[:: max(1, len(log) // 60)],
    }
    with open(os.path.join(args.out, "train.json"), "w") as f:
        json.dump(facts, f, indent=1)


if __name__ == "__main__":
    main()
