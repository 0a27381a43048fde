"""Random blocks of GGUF's quantized types and their values by the package gguf: the golden file of
`Dtype::widen`.

    python blocks.py FILE

The file is a sequence of records, one per type: type name (8 bytes, padded with zeros), number of
blocks and bytes and values of a block (u32 each), the blocks, their values (f32). Little-endian.
"""

import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

BLOCKS = 8
TYPES = {
    # Type: offsets of its half-precision scales.
    Type.Q8_0: [0],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.MXFP4: [],
}


def records():
    random = np.random.default_rng(20261122)
    for kind, halves in TYPES.items():
        values, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for at in halves:
            scales = random.normal(0, 0.05, (BLOCKS, 1)).astype("<f2")
            # A subnormal scale, zero, and the largest.
            scales[:3, 0] = [6e-8, 0, 65504]
            blocks[:, at : at + 2] = scales.view(np.uint8)
        if kind == Type.MXFP4:
            # Exponents: both subnormal ones, the largest whose values are finite, and near 1.
            blocks[:, 0] = [0, 1, 2, 251, 120, 126, 127, 130]
        out = dequantize(blocks.reshape(-1), kind).astype("<f4").reshape(-1)
        assert len(out) == BLOCKS * values and np.isfinite(out).all()
        name = kind.name.encode().ljust(8, b"\0")
        yield name + struct.pack("<III", BLOCKS, size, values) + blocks.tobytes() + out.tobytes()


with open(sys.argv[1], "wb") as file:
    file.write(b"".join(records()))
