"""The probe's MLP in ONNX Runtime beside `trail-rt bench probe`, on one thread, interleaved.

    pip install onnx onnxruntime numpy
    python benches/peers/onnx_probe.py target/release/trail-rt [--rounds 7] [--json FILE]

Both run 4096 -> 512 -> ReLU -> 10 -> softmax in f32 on random weights of that shape. In each round
every batch is timed once by each, one after the other; the ratio is the median over the rounds of
ONNX Runtime's time over ours. ONNX Runtime's result is compared with NumPy's, ours with its own
reference by the program.
"""
import argparse
import json
import statistics
import subprocess
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

D, HIDDEN, BINS = 4096, 512, 10
BATCHES = [1, 4, 16, 64, 256, 512, 2048]
SECONDS = 0.2


def model(weights):
    """The MLP as ONNX bytes."""
    names = ["w1", "b1", "w2", "b2"]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["z"], transB=1),
        helper.make_node("Softmax", ["z"], ["p"], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", D])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["rows", BINS])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, names)],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()


def session(weights):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return ort.InferenceSession(model(weights), options, providers=["CPUExecutionProvider"])


def check(run, weights, x):
    """Fails unless ONNX Runtime gives NumPy's probabilities."""
    w1, b1, w2, b2 = [w.astype(np.float64) for w in weights]
    z = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    p = np.exp(z - z.max(1, keepdims=True))
    np.testing.assert_allclose(run(x), p / p.sum(1, keepdims=True), rtol=1e-4)


def us_per_row(run, x):
    run(x)
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < SECONDS:
        run(x)
        calls += 1
    return elapsed / calls / len(x) * 1e6


def ours(program, batch, dtype):
    command = [program, "bench", "probe", "--batch", str(batch), "--dtype", dtype, "--json",
               "--repeats", "3"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return report["rows"][0]["us_per_row"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    shapes = [((HIDDEN, D), D), ((HIDDEN,), D), ((BINS, HIDDEN), HIDDEN), ((BINS,), HIDDEN)]
    weights = [(rng.uniform(-1, 1, s) / np.sqrt(fan)).astype(np.float32) for s, fan in shapes]
    onnx_session = session(weights)
    run = lambda x: onnx_session.run(None, {"x": x})[0]
    inputs = {b: rng.uniform(-1, 1, (b, D)).astype(np.float32) for b in BATCHES}
    check(run, weights, inputs[16])
    times = {b: {"onnxruntime": [], "f32": [], "bf16": []} for b in BATCHES}
    for _ in range(args.rounds):
        for batch, of in times.items():
            of["f32"].append(ours(args.program, batch, "f32"))
            of["onnxruntime"].append(us_per_row(run, inputs[batch]))
            of["bf16"].append(ours(args.program, batch, "bf16"))
    rows = []
    for batch, of in times.items():
        row = {"batch": batch, **{name: statistics.median(all) for name, all in of.items()}}
        for dtype in ("f32", "bf16"):
            ratios = [theirs / mine for theirs, mine in zip(of["onnxruntime"], of[dtype])]
            row[f"ratio_{dtype}"] = statistics.median(ratios)
        rows.append(row)
        print(f"batch {batch:>5}: ONNX Runtime {row['onnxruntime']:8.2f} us a row; "
              f"f32 {row['f32']:8.2f} ({row['ratio_f32']:.2f}x), "
              f"bf16 {row['bf16']:8.2f} ({row['ratio_bf16']:.2f}x)")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"onnxruntime": ort.__version__, "onnx": onnx.__version__, "rows": rows}, file)


if __name__ == "__main__":
    main()
