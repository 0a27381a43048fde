#!/usr/bin/env bash
# All measurements and tests that need a GPU, in slices of at most 8 minutes.
#
#   benches/gpu.sh build BIN
#       on a machine with Rust: the test program and trail-rt, into folder BIN and BIN.tar.gz
#   benches/gpu.sh run BIN OUT [SLICE...]
#       on a machine with a GPU (without Rust or network): JSON into folder OUT; BIN or BIN.tar.gz
#
# Slices, in the order in which they run when none is named:
#   tests      every kernel against its reference on the real driver; OUT/proofs is the input of
#              `trail-ptx`'s `proofs`
#   memcheck, racecheck   the first test of each module under compute-sanitizer, if installed
#   ceilings   cuBLAS's matrix rate and peers in PyTorch (skipped without torch)
#   products   trail-rt bench kernels: skinny and tiled products of Llama-3-8B; Hopper's on Hopper
#   attention  trail-rt bench kernels: decode and prefill attention
#   small      trail-rt bench kernels: sampling, embedding, tap, probe
#   decode     trail-rt bench decode: whole steps of Llama-3-8B's shape, with PyTorch peers
#   prefill    trail-rt bench prefill
#   overlap    trail-rt bench overlap: no probe, probe on the CPU, on the GPU, a blocking copy
#   transfers  trail-rt bench load and swap: weights of Llama-3-8B's shape, its KV blocks
#   serve      trail-rt --model llama3-8b.safetensors on a random file of the exact shape: time
#              until ready, and one answer over HTTP
#   loads      trail-rt bench serve: policies on Llama-3-8B's shape at shares of capacity, KV
#              capped (only when named)
#   burst      the same, 2,000 requests at once (only when named)
# The table of kernels is printed last, then the failed slices, if any; the exit status is then 1.
set -uo pipefail

build() {
    local bin=$1 name program
    mkdir -p "$bin"
    cargo build --release --locked || return
    for name in cuda cuda_backend; do
        # Cargo's messages name the executable of the test program.
        program=$(cargo test --release --locked --no-run -p trail-runtime --test "$name" \
            --message-format=json 2>/dev/null |
            grep -o "\"executable\":\"[^\"]*/$name-[^\"]*\"" | cut -d'"' -f4)
        cp "$program" "$bin/$name" || return
    done
    cp target/release/trail-rt "$bin" || return
    strip "$bin"/* 2>/dev/null || true
    tar -czf "$bin.tar.gz" -C "$bin" .
    ls -l "$bin" "$bin.tar.gz"
}

# Runs a slice with a time limit, and records its exit status.
slice() {
    local name=$1 seconds=$2 code=0
    shift 2
    printf '\n== %s\n' "$name"
    timeout "$seconds" "$@" || code=$?
    printf '{"slice":"%s","exit":%d}\n' "$name" "$code" >> "$out/slices.jsonl"
}

is_hopper() {
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^9\.0'
}

# The modules of the test programs, as PROGRAM:MODULE. Each runs in its own process, as an
# error that breaks a CUDA context lasts as long as its process.
modules() {
    local program
    for program in cuda cuda_backend; do
        "$bin/$program" --list | sed -n "s/^\([a-z_]*\)::.*: test\$/$program:\1/p" | uniq
    done | grep . || echo no_tests:none
}
# The tests of PROGRAM:MODULE $1. Not by a filter, which would match inside of names.
module_tests() {
    "$bin/${1%%:*}" --list | sed -n "s/^\(${1#*:}::.*\): test\$/\1/p" | grep .
}

tests() { "$bin/cuda" --list | sed -n "s/^\($1::.*\): test\$/\1/p" | grep .; }

tests() {
    local failed=0 module names
    rm -f "$out/proofs"
    export TRAIL_TEST_DRIVER=real TRAIL_PROOFS=$out/proofs
    for module in $(modules); do
        # shellcheck disable=SC2086 -- a name each
        names=$(module_tests "$module") &&
            timeout 75 "$bin/${module%%:*}" --test-threads=1 --exact $names || failed=1
    done
    return $failed
}

# Runs the first test of each module under a tool of the sanitizer.
sanitizer() {
    command -v compute-sanitizer > /dev/null || { echo "no compute-sanitizer here"; return 0; }
    local failed=0 module names
    export TRAIL_TEST_DRIVER=real
    for module in $(modules); do
        names=$(module_tests "$module") &&
            timeout 65 compute-sanitizer --tool "$1" --error-exitcode 3 \
                "$bin/${module%%:*}" --exact "${names%%$'\n'*}" || failed=1
    done
    return $failed
}
memcheck() { sanitizer memcheck; }
racecheck() { sanitizer racecheck; }

ceilings() {
    python3 -c 'import torch' 2>/dev/null || { echo "no PyTorch here"; return 0; }
    python3 "$here/peers/torch_kernels.py" > "$out/peers.json"
}

# Option with cuBLAS's rate, if slice `ceilings` has measured it in this run.
matrix_rate() {
    test -s "$out/peers.json" && python3 -c '
import json, sys
print("--matrix-tflops", json.load(open(sys.argv[1]))["matmul_tflop_per_s"])' "$out/peers.json"
}

kernels() {
    # shellcheck disable=SC2046 -- two words
    "$bin/trail-rt" bench kernels --json $(matrix_rate) "$@"
}
# A failed figure does not stop the others; its empty file is removed, as it is no result.
measure() {
    local name=$1
    shift
    kernels "$@" > "$out/$name.json" || { rm -f "$out/$name.json"; return 1; }
}
products() {
    local failed=0
    measure skinny --part products --kernel skinny --rows 1,2,4,8,16,32,64 || failed=1
    measure tiled --part products --kernel tiled --rows 128,256,2048 || failed=1
    if is_hopper; then
        measure bulk --part products --kernel bulk --rows 1,2,4,8,16,32,64 || failed=1
        measure wgmma --part products --kernel wgmma --rows 32,64,128,256,2048,4096,8192 || failed=1
    fi
    return $failed
}
attention() {
    measure attention --part attention
}
small() {
    measure small --part small
}

# Writes a report to a file, which is removed after a failure.
report() {
    local name=$1
    shift
    "$bin/trail-rt" "$@" --json > "$out/$name.json" || { rm -f "$out/$name.json"; return 1; }
}
peer() {
    local name=$1
    python3 -c 'import torch' 2>/dev/null || { echo "no PyTorch here"; return 0; }
    shift
    python3 "$here/peers/torch_step.py" "$@" > "$out/$name.json" ||
        { rm -f "$out/$name.json"; return 1; }
}
decode() {
    local failed=0
    # shellcheck disable=SC2046 -- two words
    report decode bench decode --device cuda --random-weights llama3-8b --context 1024 \
        --batch 1,16,32,64,128,256 $(matrix_rate) || failed=1
    # shellcheck disable=SC2046 -- two words
    report decode_megakernel bench decode --device cuda --experimental megakernel \
        --random-weights llama3-8b --context 1024 --batch 1,2,4 $(matrix_rate) || failed=1
    if is_hopper; then
        # shellcheck disable=SC2046 -- two words
        report decode_hopper bench decode --device cuda --experimental hopper-products \
            --random-weights llama3-8b --context 1024 --batch 1,16,32,64,128,256 \
            $(matrix_rate) || failed=1
        # shellcheck disable=SC2046 -- two words
        report decode_clusters bench decode --device cuda \
            --experimental hopper-products,hopper-clusters \
            --random-weights llama3-8b --context 1024 --batch 256 $(matrix_rate) || failed=1
    fi
    peer peer_decode decode --context 1024 --batch 1,16,32,64,128,256 || failed=1
    return $failed
}
prefill() {
    local failed=0
    # shellcheck disable=SC2046 -- two words
    report prefill bench prefill --device cuda --random-weights llama3-8b \
        --tokens 2048,4096,8192 $(matrix_rate) || failed=1
    if is_hopper; then
        # shellcheck disable=SC2046 -- two words
        report prefill_hopper bench prefill --device cuda --experimental hopper-products \
            --random-weights llama3-8b --tokens 2048,4096,8192 $(matrix_rate) || failed=1
        # shellcheck disable=SC2046 -- two words
        report prefill_clusters bench prefill --device cuda \
            --experimental hopper-products,hopper-clusters \
            --random-weights llama3-8b --tokens 2048,4096,8192 $(matrix_rate) || failed=1
    fi
    peer peer_prefill prefill --tokens 2048,4096,8192 || failed=1
    return $failed
}
# Four backends at once: the short context leaves memory for all.
overlap() {
    report overlap bench overlap --device cuda --random-weights llama3-8b --context 128 \
        --batch 1,8,64,256
}

transfers() {
    local failed=0
    peer peer_transfers transfers || failed=1
    report swap bench swap || failed=1
    report load bench load --random-weights llama3-8b || failed=1
    return $failed
}

# Serves a checkpoint file of 16 GB with random weights, written first; its answers are noise.
serve() {
    local folder started ready
    folder=$(mktemp -d)
    python3 "$here/random_checkpoint.py" llama3-8b "$folder" || return
    started=$(date +%s%N)
    "$bin/trail-rt" --model "$folder/llama3-8b.safetensors" --device cuda --port 8123 --json \
        > "$out/serve.json" &
    server=$!
    until test -s "$out/serve.json" || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
    ready=$(date +%s%N)
    echo "ready after $(((ready - started) / 1000000)) ms"
    curl -s http://127.0.0.1:8123/v1/completions -H 'content-type: application/json' \
        -d '{"prompt": "a", "max_tokens": 32, "ignore_eos": true}' | tee "$out/serve_answer.json"
    kill $server
    wait $server
    local code=$?
    rm -r "$folder"
    grep -q '"completion_tokens":32' "$out/serve_answer.json" && return $code
}

# Random weights, forced lengths, replayed predictions, and too few KV blocks for 256 sequences.
serving() {
    local name=$1
    shift
    report "$name" bench serve --random-weights llama3-8b --device cuda --kv-blocks 4096 "$@"
}
loads() {
    serving loads --requests 600 --loads 0.8,1.0
}
burst() {
    serving burst --burst 2000
}

table() {
    for file in skinny tiled bulk wgmma attention small; do
        test -s "$out/$file.json" &&
            python3 "$here/peers/table.py" "$out/$file.json" "$out/peers.json"
    done
}

here=$(cd "$(dirname "$0")" && pwd)
case ${1:-} in
build) build "${2:?benches/gpu.sh build BIN}" ;;
run)
    bin=${2:?benches/gpu.sh run BIN OUT [SLICE...]}
    if [[ $bin == *.tar.gz ]]; then
        unpacked=$(mktemp -d)
        tar -xzf "$bin" -C "$unpacked" || exit
        bin=$unpacked
    fi
    bin=$(cd "$bin" && pwd) || exit
    mkdir -p "${3:?benches/gpu.sh run BIN OUT [SLICE...]}"
    out=$(cd "$3" && pwd)
    shift 3
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv |
        tee "$out/device.csv"
    export -f is_hopper modules module_tests tests sanitizer memcheck racecheck
    export -f ceilings kernels matrix_rate measure
    export -f products attention small report peer decode prefill overlap transfers
    export -f serve serving loads burst
    export bin out here
    rm -f "$out/slices.jsonl"
    test $# -gt 0 || set -- tests memcheck racecheck ceilings products attention small \
        decode prefill overlap transfers serve
    for name in "$@"; do
        slice "$name" 480 bash -c "$name"
    done
    table
    ! grep -v '"exit":0' "$out/slices.jsonl"
    ;;
*) sed -n '2,26p' "$0"; exit 2 ;;
esac
