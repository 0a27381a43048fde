"""Entropy-guided pooling and progressive prediction (EGTP and PLP of ForeLen, arXiv 2602.11812) on
the answers of `trail-rt probe collect`: the nearest rival of the probe.

    trail-rt probe collect --model M.gguf --prompts TRAIN.jsonl --layers 19 --rows 24 --out train
    trail-rt probe collect --model M.gguf --prompts TEST.jsonl --layers 19 --rows 0 --out test
    python benches/peers/egtp.py train test --model M.gguf --layer 19 --out egtp.jsonl \\
        --beside trail=trail.jsonl

The model runs in PyTorch over the prompts. EGTP pools the prompt's hidden states with the softmax
of the entropies of their next tokens, and predicts the length from that; PLP predicts what remains
with every token from the pooled prompt beside the token's own activation. Both predict a
distribution over bins, trained on soft labels (the two nearest bins, so that the expectation is the
length) and on the squared error of its mean. The paper's abstract and descriptions of it by others
were at hand, not its text: the bins, the head's size and the recipe are those of `trail-rt probe
train`, so that what differs is the pooling. `--pooling mean` is the same with the plain mean, as
the probe's input `activation+prompt` has it, and `none` the token's activation alone.

Prints tau-b with its standard error over answers at the ages 0, 1, 4, 16 and 64, mean absolute
errors, and the same of the traces in `--beside`; writes what `trail-rt simulate --trace` replays.
"""
import argparse
import glob
import json
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open
from scipy.stats import kendalltau
from transformers import AutoModelForCausalLM

from probe_training import BINS, mix, weights_of

AGES = (0, 1, 4, 16, 64)
POOLINGS = ("entropy", "mean", "none")


class Answers:
    """The answers of a collection, in order."""

    def __init__(self, folder, layer):
        parts = {"index": [], "stopped": [], "prompts": [], "length": []}
        rows = {"activation": [], "request": [], "generated": []}
        requests = 0
        for path in sorted(glob.glob(os.path.join(folder, "shard-*.safetensors"))):
            with safe_open(path, "pt") as f:
                tensor = {name: f.get_tensor(name) for name in f.keys()}
            as_int = lambda name: tensor[name].numpy().astype(np.int64)
            parts["index"].append(as_int("request.index"))
            parts["stopped"].append(as_int("request.stopped") == 1)
            parts["length"].append(np.diff(as_int("answer.ends"), prepend=0))
            ids = as_int("prompt.ids")
            parts["prompts"] += np.split(ids, as_int("prompt.ends")[:-1])
            rows["activation"].append(tensor[f"rows.{layer}"].float())
            rows["request"].append(as_int("row.request") + requests)
            rows["generated"].append(as_int("row.generated"))
            requests += len(tensor["request.index"])
        self.index, self.length, self.stopped = (
            np.concatenate(parts[name]) for name in ("index", "length", "stopped"))
        self.prompts = parts["prompts"]
        self.activation = torch.cat(rows["activation"])
        self.request = np.concatenate(rows["request"])
        self.generated = np.concatenate(rows["generated"])
        self.is_validation = np.array([mix(1 ^ mix(int(i))) % 8 == 0 for i in self.index])


def pooled(model, layer, prompts):
    """The prompts' hidden states after `layer`, weighted by entropy, and their mean."""
    out = {"entropy": [], "mean": []}
    for at, prompt in enumerate(prompts):
        with torch.inference_mode():
            output = model(torch.from_numpy(prompt)[None], output_hidden_states=True)
            hidden = output.hidden_states[layer + 1][0].float()
            logs = F.log_softmax(output.logits[0].float(), -1)
            weights = F.softmax(-(logs.exp() * logs).sum(-1), 0)
        out["entropy"].append(weights @ hidden)
        out["mean"].append(hidden.mean(0))
        if at % 100 == 0:
            print(f"prompt {at} of {len(prompts)}", flush=True)
    return {name: torch.stack(of) for name, of in out.items()}


class Head(nn.Module):
    """The probe's MLP over inputs of mean 0 and deviation 1, and the mean of its bins."""

    def __init__(self, inputs, longest, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.register_buffer("mean", inputs.mean(0))
        self.register_buffer("deviation", inputs.std(0) + 1e-6)
        width = longest / BINS
        self.register_buffer("centers", (torch.arange(BINS) + 0.5) * width)
        self.layers = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(inputs.shape[1], 512), nn.ReLU(), nn.Dropout(0.5),
            nn.Linear(512, BINS))

    def forward(self, inputs):
        return self.layers((inputs - self.mean) / self.deviation)

    def length(self, logits):
        return F.softmax(logits, -1) @ self.centers

    def loss(self, inputs, lengths, weights):
        logits = self(inputs)
        width = self.centers[1] - self.centers[0]
        place = ((lengths - self.centers[0]) / width).clamp(0, BINS - 1)
        soft = (1 - (place[:, None] - torch.arange(BINS)).abs()).clamp(min=0)
        off = (self.length(logits) - lengths) / width
        losses = -(soft * F.log_softmax(logits, -1)).sum(-1) + off.square() / BINS
        return (losses * weights).sum() / weights.sum()

    def predict(self, inputs):
        self.eval()
        with torch.no_grad():
            return torch.cat([self.length(self(part)) for part in inputs.split(65536)]).numpy()


def trained(inputs, lengths, weights, is_validation, longest, seed, epochs=16, batch=256):
    """The head of the epoch with the least loss on the validation's answers."""
    lengths = torch.as_tensor(lengths, dtype=torch.float32)
    weights = torch.as_tensor(weights, dtype=torch.float32)
    kept = torch.from_numpy(is_validation)
    train = torch.nonzero(~kept)[:, 0]
    head = Head(inputs[train], longest, seed)
    steps = epochs * (len(train) // batch + 1)
    optimizer = torch.optim.AdamW(head.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, state = np.inf, None
    for _ in range(epochs):
        head.train()
        for part in train[torch.randperm(len(train))].split(batch):
            optimizer.zero_grad()
            head.loss(inputs[part], lengths[part], weights[part]).backward()
            optimizer.step()
            schedule.step()
        head.eval()
        with torch.no_grad():
            loss = head.loss(inputs[kept], lengths[kept], weights[kept]).item()
        if loss < best:
            best, state = loss, {name: of.clone() for name, of in head.state_dict().items()}
    head.load_state_dict(state)
    return head


def predictions(train, test, features, pooling, longest, seed):
    """Of every test answer the length by the prompt, and what remains at each token."""
    of_prompt = "mean" if pooling == "none" else pooling
    ones = np.ones(len(train.length))
    static = trained(features["train"][of_prompt], train.length, ones, train.is_validation,
                     longest, seed)
    first = static.predict(features["test"][of_prompt])
    beside = lambda side, answers: answers.activation if pooling == "none" else torch.cat(
        [answers.activation, features[side][pooling][answers.request]], 1)
    _, share = weights_of(train.request, train.generated, train.length - 1)
    remaining = train.length[train.request] - train.generated
    head = trained(beside("train", train), remaining, share, train.is_validation[train.request],
                   longest, seed)
    rows = head.predict(beside("test", test))
    steps = [[float(of)] for of in first]
    for request, of in zip(test.request, rows):
        steps[request].append(float(of))
    return first, steps


def figures(lengths, stopped, steps, draws=200):
    """tau-b by age with its standard error, and mean absolute errors of the tokens."""
    out, rng = {}, np.random.default_rng(1)
    for age in AGES:
        old = [at for at, of in enumerate(steps) if len(of) > age]
        true = np.array([lengths[at] - age for at in old])
        predicted = np.array([steps[at][age] for at in old])
        draw = lambda: rng.integers(0, len(old), len(old))
        tau = lambda at: kendalltau(true[at], predicted[at]).statistic
        taus = [tau(draw()) for _ in range(draws)]
        out[f"tau_b_{age}"] = round(kendalltau(true, predicted).statistic, 3)
        out[f"tau_b_{age}_error"] = round(float(np.std(taus)), 3)
    errors = [np.abs(length - np.arange(len(of)) - of)[1:]
              for length, of in zip(lengths, map(np.array, steps))]
    for name, kept in (("all", None), ("stopped", True), ("cut", False)):
        some = [of for of, end in zip(errors, stopped) if kept is None or bool(end) == kept]
        out[f"mae_{name}"] = round(float(np.concatenate(some).mean()), 1)
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--model", required=True, help="the GGUF file that answered")
    parser.add_argument("--layer", type=int, required=True)
    parser.add_argument("--pooling", choices=POOLINGS, nargs="+", default=list(POOLINGS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", help="file for the pooled prompts, which take the time")
    parser.add_argument("--beside", nargs="*", default=[], metavar="NAME=TRACES")
    parser.add_argument("--out", required=True, help="traces of the first pooling")
    args = parser.parse_args()
    train, test = Answers(args.train, args.layer), Answers(args.test, args.layer)
    source = [os.path.abspath(path) for path in (args.model, args.train, args.test)]
    source.append(str(args.layer))
    kept = {}
    if args.cache and os.path.exists(args.cache):
        kept = torch.load(args.cache)
    if kept.get("source") == source:
        features = kept["features"]
    else:
        folder, name = os.path.split(os.path.abspath(args.model))
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32).eval()
        features = {side: pooled(model, args.layer, of.prompts)
                    for side, of in (("train", train), ("test", test))}
        if args.cache:
            torch.save({"source": source, "features": features}, args.cache)
    longest = int(train.length.max())
    report = {}
    for at, pooling in enumerate(args.pooling):
        first, steps = predictions(train, test, features, pooling, longest, args.seed)
        report[pooling] = figures(test.length, test.stopped, steps)
        print(pooling, json.dumps(report[pooling]), flush=True)
        if at > 0:
            continue
        with open(args.out, "w") as f:
            for at, of in enumerate(steps):
                f.write(json.dumps({
                    "id": at, "arrival_s": 0.0, "prompt_tokens": len(test.prompts[at]),
                    "output_tokens": int(test.length[at]), "r": float(first[at]),
                    "remaining": [round(step, 2) for step in of]}) + "\n")
    for of in args.beside:
        name, path = of.split("=", 1)
        with open(path) as f:
            traces = [json.loads(line) for line in f]
        assert [of["output_tokens"] for of in traces] == test.length.tolist(), "other answers"
        # Before its first token a request is ranked by r.
        steps = [[of["r"], *of["remaining"][1:]] for of in traces]
        report[name] = figures(test.length, test.stopped, steps)
        print(name, json.dumps(report[name]), flush=True)
        report[f"{name}_r"] = figures(test.length, test.stopped, [
            [of["r"] - age for age in range(len(of["remaining"]))] for of in traces])
    print(json.dumps(report))


if __name__ == "__main__":
    main()
