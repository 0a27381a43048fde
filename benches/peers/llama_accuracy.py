"""Log probabilities of llama.cpp against those of `trail-rt bench accuracy`, exact in f32.

    trail-rt bench accuracy --model FILE.gguf --text TEXT --out EXACT.json
    python benches/peers/llama_accuracy.py FILE.gguf EXACT.json

Needs llama-cpp-python. Prints the figures that `bench accuracy` prints of `--compute fast`: the
mean absolute difference of the log probabilities of the text's tokens, and the share of positions
with the same most probable token.
"""
import json
import os
import sys

import llama_cpp
import numpy as np


def main():
    path, exact = sys.argv[1:]
    with open(exact) as file:
        exact = json.load(file)
    sequences = np.array(exact["sequences"])
    count, tokens = sequences.shape
    # Per position, then per sequence.
    logprobs = np.array(exact["logprobs"]).reshape(tokens - 1, count)
    best = np.array(exact["best"]).reshape(tokens - 1, count)
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, None)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = tokens
    params.n_threads = params.n_threads_batch = 2
    context = llama_cpp.llama_init_from_model(model, params)
    batch = llama_cpp.llama_batch_init(tokens, 0, 1)
    differences, same = [], []
    for index, sequence in enumerate(sequences):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch.n_tokens = tokens
        for i, token in enumerate(sequence):
            batch.token[i], batch.pos[i], batch.logits[i] = int(token), i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if llama_cpp.llama_decode(context, batch) != 0:
            sys.exit("llama_decode failed")
        logits = llama_cpp.llama_get_logits(context)
        logits = np.ctypeslib.as_array(logits, (tokens, vocab))[:-1].astype(np.float64)
        largest = logits.max(1, keepdims=True)
        logits -= largest + np.log(np.exp(logits - largest).sum(1, keepdims=True))
        chosen = logits[np.arange(tokens - 1), sequence[1:]]
        differences.append(np.abs(chosen - logprobs[:, index]))
        same.append(logits.argmax(1) == best[:, index])
    print(json.dumps({
        "positions": int(np.size(differences)),
        "mean_abs_difference_of_logprobs": float(np.mean(differences)),
        "same_top_1": float(np.mean(same)),
    }))


main()
