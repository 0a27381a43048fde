"""Batched sampling with a KV cache, and the tapping of block outputs."""
import copy

import torch

import corpus
import model as M
import tokenizer as T


def generate_on(ranks, folder, prompts, seed, **kw):
    """`generate`, shared out over single-threaded processes."""
    if ranks == 1:
        return generate(M.load(folder), prompts, seed, **kw)
    parts = [list(range(r, len(prompts), ranks)) for r in range(ranks)]
    jobs = [(folder, [prompts[i] for i in p], seed * 100 + r, kw) for r, p in enumerate(parts)]
    with torch.multiprocessing.get_context("spawn").Pool(ranks) as pool:
        done = pool.map(_one, jobs)
    out = [None] * len(prompts)
    for p, answers in zip(parts, done):
        for i, a in zip(p, answers):
            out[i] = a
    return out


def _one(job):
    folder, prompts, seed, kw = job
    torch.set_num_threads(1)
    return generate(M.load(folder), prompts, seed, **kw)


@torch.no_grad()
def generate(
    net, prompts, seed, max_tokens=corpus.MAX_TOKENS, batch=256, temperature=1.0, report=False
):
    """Answers (token ids, the end mark included if it was produced) to prompts given as ids. Runs
    in bf16."""
    torch.manual_seed(seed)
    c = net.cfg
    out = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    half = copy.deepcopy(net).to(torch.bfloat16)
    half.cos, half.sin = net.cos, net.sin
    done_rows = 0
    for first in range(0, len(order), batch):
        rows = order[first:first + batch]
        width = max(len(prompts[i]) for i in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        pad = torch.zeros(len(rows), dtype=torch.long)
        for j, i in enumerate(rows):
            pad[j] = width - len(prompts[i])
            ids[j, pad[j]:] = torch.tensor(prompts[i])
        total = width + max_tokens
        caches = [
            [
                torch.zeros(
                    len(rows), c["num_key_value_heads"], total, c["head_dim"], dtype=torch.bfloat16
                )
                for _ in range(2)
            ]
            for _ in net.model.layers
        ]
        mask = torch.where(torch.arange(total)[None] < pad[:, None], -1e30, 0.0).to(torch.bfloat16)
        rows_t = list(rows)
        for at in range(width):
            m = mask.clone()
            # A padded row attends to itself only; its output is not used.
            m[:, at] = 0
            logits = half.step(ids[:, at], (at - pad).clamp(min=0), caches, at, m)
        alive = torch.ones(len(rows_t), dtype=torch.bool)
        for t in range(max_tokens):
            p = (logits.float() / temperature).softmax(-1)
            nxt = torch.multinomial(p, 1)[:, 0]
            for j, tok in enumerate(nxt.tolist()):
                if alive[j]:
                    out[rows_t[j]].append(tok)
                    if tok == T.EOS:
                        alive[j] = False
            n = int(alive.sum())
            if n == 0 or t == max_tokens - 1:
                break
            if n < 0.8 * len(rows_t):
                keep = alive.nonzero()[:, 0]
                rows_t = [rows_t[j] for j in keep.tolist()]
                caches = [[x[keep] for x in pair] for pair in caches]
                pad, mask, nxt, alive = pad[keep], mask[keep], nxt[keep], alive[keep]
            at = width + t
            logits = half.step(nxt, at - pad, caches, at, mask)
        done_rows += len(rows)
        if report:
            print("generated", done_rows, "of", len(prompts), flush=True)
    return out


@torch.no_grad()
def tap(net, prompts, answers, layers, size=16384):
    """Yields (index, mean over the prompt [L, d], rows [L, 1 + N, d]): row 0 is the last prompt
    position, row t the position of output token t. f32. The end mark's own position is included
    when N counts it (remaining 0)."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(answers[i]))
    i = 0
    while i < len(order):
        group, longest = [], 0
        while i < len(order):
            n = len(prompts[order[i]]) + len(answers[order[i]])
            if group and (len(group) + 1) * max(longest, n) > size:
                break
            group.append(order[i])
            longest = max(longest, n)
            i += 1
        ids = torch.zeros(len(group), longest, dtype=torch.long)
        for j, k in enumerate(group):
            seq = prompts[k] + answers[k]
            ids[j, :len(seq)] = torch.tensor(seq)
        taps = []
        net(ids, taps)
        taps = [taps[x] for x in layers]
        for j, k in enumerate(group):
            p, n = len(prompts[k]), len(answers[k])
            rows = torch.stack([x[j, p - 1:p + n] for x in taps])
            mean = torch.stack([x[j, :p].mean(0) for x in taps])
            yield k, mean.numpy(), rows.numpy()


def draw_prompts(split, n, seed, distinct=True, stratified=True):
    """n prompts of a split: (family, text, slots, seed). Stratified: every prefix has each family's
    share, nearly."""
    import random
    rng = random.Random(seed)
    names = list(corpus.FAMILIES)
    seen, owed, out = set(), {f: rng.random() * 0.5 for f in names}, []
    while len(out) < n:
        if stratified:
            for f in names:
                owed[f] += corpus.FAMILIES[f][0]
            fam = max(names, key=lambda f: owed[f])
            owed[fam] -= 1
        else:
            fam = None
        for _ in range(200):
            f, text, slots = corpus.draw_prompt(rng, split, fam)
            if not distinct or text not in seen:
                break
        else:
            continue
        seen.add(text)
        out.append((f, text, slots, rng.getrandbits(52)))
    return out


def encode_prompts(tok, items):
    return [e.ids for e in tok.encode_batch([T.templated(x[1]) for x in items])]
