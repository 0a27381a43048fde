"""Writes prompts.jsonl, results.json and the model card from what the other stages left in the work
folder.

    python assets/demo/make/assemble.py --model assets/demo --work build
"""
import argparse
import json
import os


def read(work, name):
    path = os.path.join(work, name)
    if not os.path.exists(path):
        return None
    with open(path) as f:
        return json.load(f)


def pct(x):
    return f"{100 * x:.1f} %"


def card(r):
    t, e, p, q, b = r["training"], r["answers"], r["probe"], r["prompt_only"], r["bayes"]
    c = r["config"]
    L = e["length"]
    lines = [
        "# The bundled demo model",
        "",
        f"A {t['parameters'] / 1e6:.1f} M parameter Llama ({c['num_hidden_layers']} layers, hidden {c['hidden_size']}, "
        f"{c['num_attention_heads']} heads, {c['num_key_value_heads']} KV heads, vocabulary {c['vocab_size']}), trained from scratch on a CPU on text "
        "written by `assets/demo/make/corpus.py`. It exists to show length-predicting scheduling end to end with no download: it answers 17 "
        "families of small instructions, and in ten of them how long an answer will be is decided by the answer itself, early on. It knows nothing else.",
        "",
        "| file | what |",
        "|---|---|",
        "| `model.safetensors`, `config.json`, `generation_config.json` | weights (bf16, Hugging Face names, tied embeddings) |",
        "| `tokenizer.json`, `tokenizer_config.json` | byte-level BPE, 1024 entries, chat template |",
        f"| `probe.safetensors` | remaining-length probe on the output of block {p['layer']} (0-based): {c['hidden_size']} -> 512 -> ReLU -> 10 bins |",
        "| `predictor.safetensors` | prompt-only predictor: 10 bins from ln(1 + count) of the prompt's token ids |",
        f"| `prompts.jsonl` | {r['bundled_prompts']} prompts that no training stage has seen; every prefix is nearly stratified over the families |",
        "| `results.json` | all figures, per layer and per family |",
        "",
        "## Figures",
        "",
        f"Measured on held-out prompts at temperature 1, at most {e['max_tokens']} tokens. How each is computed: `assets/demo/make/README.md`.",
        "",
        f"Answers ({e['prompts']} prompts): {pct(e['success_overall'])} pass their family's checker; {pct(L['stop_by_themselves'])} stop by themselves, the rest "
        f"are cut at the cap (by design about a quarter). Length: mean {L['mean']}, deciles 10/25/50/75/90 % = {'/'.join(map(str, L['deciles_10_25_50_75_90']))}.",
        "",
        "| family | prompts | pass | stop by themselves |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {f} | {v['n']} | {pct(v['rate'])} | {pct(v['stop_by_themselves'])} |"
        for f, v in e["success"].items()
    ]
    lines += [
        "",
        f"Mean absolute error of the remaining length over all {p['held_steps']} decode steps of {p['held_prompts']} held-out prompts, in tokens:",
        "",
        "| predictor | MAE |",
        "|---|---|",
        f"| probe, refined (smoothed) | **{p['mae_refined']}** |",
        f"| probe, raw | {p['mae_raw']} |",
    ]
    lines += [
        f"| {name}, counted down (best of {', '.join(v)}) | {min(v.values())} |"
        for name, v in q["prompt_only_counted_down"].items()
    ]
    if b:
        lines += [
            f"| Bayes, prompt only, counted down ({b['prompts']} prompts, of the corpus) | {b['prompt_only_mae']} |",
            f"| Bayes, refined (upper bound, of the corpus) | {b['refined_mae']} |",
        ]
    lines += ["", f"Best prompt-only over refined: {q['best_prompt_only_over_refined']}x.", "",
              "| block | raw MAE | refined MAE | bin accuracy |", "|---|---|---|---|"]
    lines += [
        f"| {x['layer']} | {x['raw']} | {x['refined']} | {pct(x['bin_accuracy'])} |"
        for x in p["layers_validation"]
    ]
    lines += [
        "",
        f"(A short training per layer, on {p['validation_prompts']} validation prompts; the chosen layer is then trained on all rows.)",
        "",
        "During the last part of its training the model was also asked, by an auxiliary head on the output of block 3 that was then thrown away, how much is still to come. "
        "So it carries the signal because it was told to; `assets/demo/make/README.md` has the figures without it. "
        f"Refined error by step: "
        + ", ".join(f"{k} {v}" for k, v in p["mae_refined_by_step"].items())
        + ".",
        "",
        f"Training: {t['tokens'] / 1e6:.0f} M tokens (padding counted), {t['steps']} steps, {t['minutes']} minutes on {t['threads']} threads, loss {t['final_loss']} nats per answer token.",
        "",
        "## Limits",
        "",
        "It is a toy: its text is templated, arithmetic stays below about 100, and prompts unlike those of the 17 families get a plausible-looking wrong answer. "
        "The lengths have the shape of the Alpaca answers under a cap of 512, not their difficulty: real prompts give their length away later and less clearly.",
        "",
        "All of it was generated by the scripts in `assets/demo/make`; no outside text or weights are in it. Licence: as the repository's.",
        "",
    ]
    return "\n".join(lines)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", default="assets/demo")
    ap.add_argument("--work", default="build")
    ap.add_argument("--prompts", type=int, default=1200)
    ap.add_argument("--seed", type=int, default=21)
    args = ap.parse_args()
    import gen
    items = gen.draw_prompts("held", args.prompts, args.seed)
    with open(os.path.join(args.model, "prompts.jsonl"), "w") as f:
        for i, (fam, text, _, seed) in enumerate(items):
            f.write(json.dumps({"id": i, "family": fam, "prompt": text, "seed": seed}) + "\n")
    config = read(args.model, "config.json")
    r = {
        "format": "trail-demo-results",
        "version": 1,
        "bundled_prompts": len(items),
        "config": config,
        "training": read(args.model, "train.json") or read(args.work, "train.json"),
        "answers": read(args.work, "evaluate.json"),
        "probe": read(args.work, "probe.json"),
        "prompt_only": read(args.work, "predictor.json"),
        "bayes": read(args.work, "bayes.json"),
        "checks": read(args.work, "check.json"),
    }
    with open(os.path.join(args.model, "results.json"), "w") as f:
        json.dump(r, f, indent=1)
        f.write("\n")
    with open(os.path.join(args.model, "README.md"), "w") as f:
        f.write(card(r))
    print(card(r))


if __name__ == "__main__":
    main()
