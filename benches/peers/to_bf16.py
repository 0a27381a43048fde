"""Writes a GGUF file with the matrices of another in bf16, by llama.cpp's quantizer.

    python benches/peers/to_bf16.py SmolLM2-135M-Instruct.Q4_1.gguf SmolLM2-135M-Instruct.bf16.gguf

Needs llama-cpp-python. Norms stay in f32. A quantized matrix gets the values that its blocks stand
for, rounded to bf16.
"""
import ctypes
import os
import sys

import llama_cpp


def main():
    source, out = map(os.fsencode, sys.argv[1:])
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_BF16
    params.allow_requantize = True
    sys.exit(llama_cpp.llama_model_quantize(source, out, ctypes.byref(params)))


if __name__ == "__main__":
    main()
