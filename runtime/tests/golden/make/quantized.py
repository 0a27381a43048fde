"""Writes the golden quantized checkpoints: small random models, packed by the packages that made
those of the hub, and what transformers computes in float32 with the weights that the same packages
unpack.

    pip install --no-deps --target PACKAGES auto-gptq==0.7.1 autoawq==0.2.9 \\
        compressed-tensors==0.20.0 loguru==0.7.3
    python quantized.py PACKAGES ../../golden-quantized

Weights are unpacked with f32 scales, so that none is rounded, and then rounded as the runtime
stores them: 4 bits not at all, with act-order to f16, FP8 to bf16.
"""

import importlib
import json
import sys
import tempfile
import types
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from configs import BASE, LLAMA
from make import random_weights, rounded, run

CONFIG = BASE | LLAMA | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}


def import_alone(folder, name):
    """Imports a module of a package whose __init__ asks for much more."""
    package = name.split(".")[0]
    if package not in sys.modules:
        sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [str(folder / package)]
    for depth in range(2, name.count(".") + 1):
        parent = ".".join(name.split(".")[:depth])
        module = sys.modules.setdefault(parent, types.ModuleType(parent))
        module.__path__ = [str(folder / parent.replace(".", "/"))]
    return importlib.import_module(name)


def linear(weight):
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    module.weight.data = weight.clone()
    return module


def grid(weight, group, symmetric):
    """Scales in f16 and zero points of `weight`, `[rows, groups]`."""
    rows, cols = weight.shape
    parts = weight.reshape(rows, cols // group, group)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    if symmetric:
        scale = (2 * torch.maximum(-low, high) / 15).half().float()
        return scale, torch.full_like(scale, 8.0)
    scale = ((high - low) / 15).half().float()
    return scale, (-low / scale).round().clamp(1, 15)


def gptq(packages, weight, group, symmetric, act_order=False, is_v2=False, seed=0):
    quant = import_alone(packages, "auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear
    rows, cols = weight.shape
    group = cols if group == -1 else group
    order = torch.arange(cols, dtype=torch.int32) // group
    if act_order:
        order = order[torch.randperm(cols, generator=torch.Generator().manual_seed(seed))]
    # The groups' own columns, for their scales.
    by_group = weight[:, torch.argsort(order, stable=True)]
    scale, zero = grid(by_group, group, symmetric)
    layer = quant(4, group, cols, rows, bias=False, weight_dtype=torch.float16)
    # Zero points less 1 are the package's; gptq_v2 has them as they are.
    layer.pack(linear(weight), scale.clone(), zero.clone(), order)
    layer.scales = layer.scales.float()
    unpacked = layer(torch.eye(cols)).t().contiguous()
    if is_v2:
        layer.qzeros += 0x11111111
    stored = {"qweight": layer.qweight, "qzeros": layer.qzeros, "g_idx": layer.g_idx}
    # As AutoGPTQ writes for modules without a bias.
    bias = {} if is_v2 else {"bias": torch.zeros(rows, dtype=torch.float16)}
    return stored | {"scales": layer.scales.half()} | bias, unpacked


def awq(packages, weight, group):
    for name in ("awq.utils.utils", "awq.utils.module", "awq.utils.packing_utils"):
        import_alone(packages, name)
    gemm = import_alone(packages, "awq.modules.linear.gemm").WQLinear_GEMM
    scale, zero = grid(weight, group, False)
    scale, zero = scale.t().contiguous(), zero.t().contiguous()
    layer = gemm.from_linear(linear(weight), 4, group, scales=scale, zeros=zero)
    stored = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}
    unpack = sys.modules["awq.utils.packing_utils"].dequantize_gemm
    weight = unpack(layer.qweight, layer.qzeros, layer.scales.float(), 4, group)
    return stored, weight.t().contiguous()


def scheme(**weights):
    quantization = importlib.import_module("compressed_tensors.quantization")
    args = quantization.QuantizationArgs(**weights)
    return quantization.QuantizationScheme(targets=["Linear"], weights=args)


def packed(weight, group, symmetric):
    compressors = importlib.import_module("compressed_tensors.compressors.pack_quantized.base")
    scale, zero = grid(weight, group, symmetric)
    how = scheme(num_bits=4, type="int", strategy="group", group_size=group, symmetric=symmetric)
    state = {"weight": weight, "weight_scale": scale}
    if not symmetric:
        state["weight_zero_point"] = (zero - 8).to(torch.int8)
    stored = compressors.PackedQuantizationCompressor.compress(state, how)
    unpacked = compressors.PackedQuantizationCompressor.decompress(stored, how)["weight"]
    return stored | {"weight_scale": scale.half()}, unpacked


def fp8_channel(weight):
    compressors = importlib.import_module("compressed_tensors.compressors.naive_quantized.base")
    how = scheme(num_bits=8, type="float", strategy="channel", symmetric=True)
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    state = {"weight": weight.bfloat16(), "weight_scale": scale}
    stored = compressors.FloatQuantizationCompressor.compress(state, how)
    unpacked = compressors.FloatQuantizationCompressor.decompress(stored, how)["weight"]
    return stored | {"input_scale": torch.ones(1)}, unpacked.bfloat16().float()


def fp8_block(weight, block):
    rows, cols = weight.shape
    high, wide = block or (rows, cols)
    parts = weight.reshape(rows // high, high, cols // wide, wide)
    scale = parts.abs().amax((1, 3)) / 448
    codes = (parts / scale[:, None, :, None]).reshape(rows, cols).to(torch.float8_e4m3fn)
    unpacked = Fp8Dequantize(None)._dequantize_one(codes, scale, torch.bfloat16).float()
    # One scale is stored as a number.
    return {"weight": codes, "weight_scale_inv": scale if block else scale.reshape(())}, unpacked


def variants(packages):
    """Name -> quantization_config, and the function of a matrix's tensors and weights."""
    gptq_config = {"quant_method": "gptq", "bits": 4, "desc_act": False, "sym": True}
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    floats = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}

    def tensors(format, weights):
        groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
        method = {"quant_method": "compressed-tensors", "format": format}
        return method | {"config_groups": groups, "ignore": ["lm_head"]}

    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    return {
        "gptq": (
            gptq_config | {"group_size": 32},
            lambda w, _: gptq(packages, w, 32, True),
        ),
        "gptq-act-order": (
            gptq_config | {"group_size": 32, "desc_act": True, "sym": False},
            lambda w, seed: gptq(packages, w, 32, False, act_order=True, seed=seed),
        ),
        "gptq-v2": (
            gptq_config | {"group_size": -1, "sym": False, "checkpoint_format": "gptq_v2"},
            lambda w, _: gptq(packages, w, -1, False, is_v2=True),
        ),
        "awq": (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
            | {"zero_point": True, "modules_to_not_convert": None},
            lambda w, _: awq(packages, w, 64),
        ),
        "packed": (
            tensors("pack-quantized", weights | {"group_size": 32}),
            lambda w, _: packed(w, 32, False),
        ),
        "fp8-block": (
            fp8 | {"fmt": "e4m3", "weight_block_size": [32, 64]},
            lambda w, _: fp8_block(w, (32, 64)),
        ),
        "fp8-tensor": (fp8 | {"weight_block_size": None}, lambda w, _: fp8_block(w, None)),
        "fp8-channel": (tensors("float-quantized", floats), lambda w, _: fp8_channel(w)),
    }


def main(packages, out):
    sys.path.append(str(packages))
    for number, (name, (quantization, pack)) in enumerate(variants(packages).items()):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        plain = random_weights(CONFIG, lambda _: torch.float32, seed=number)
        stored, unpacked = {}, {}
        for index, (tensor, weight) in enumerate(plain.items()):
            if tensor.startswith("model.layers.") and tensor.endswith("_proj.weight"):
                module = tensor.removesuffix(".weight")
                parts, weight = pack(weight, index)
                stored |= {f"{module}.{part}": value for part, value in parts.items()}
                if "act-order" in name:
                    weight = weight.half()
            else:
                weight = weight.half()
                stored[tensor] = weight
            unpacked[tensor] = weight.detach().float().contiguous()
        save_file({n: t.contiguous() for n, t in stored.items()}, folder / "model.safetensors")
        config = CONFIG | {"quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / "config.json").write_text(json.dumps(CONFIG))
            save_file(unpacked, Path(work) / "model.safetensors", metadata={"format": "pt"})
            golden = rounded(run(Path(work), CONFIG, number))
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        print(f"{name:22} smallest gap {min(golden['gaps']):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
