#!/usr/bin/env bash
# Fuzzes every target, or the named ones: tests/fuzz/run.sh SECONDS [TARGET...]. Seeds are in
# tests/fuzz/seeds/TARGET; inputs that reach new code go to tests/fuzz/corpus/TARGET, failures to
# tests/fuzz/artifacts/TARGET.
#
# libFuzzer by stable cargo: coverage is a pass of LLVM. The code under test is safe Rust, so that
# no sanitizer is needed; a panic, 20 seconds or 2 GiB are failures.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:?usage: tests/fuzz/run.sh SECONDS [TARGET...]}
shift
small=(decision_log predictor_file probe_file ptx shard trace)
large=(adapter answer body chat config conversation encoder gguf grammar head proxied quantized stop
    stream template tokenizer tokenizer_growth weights)
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    targets=("${small[@]}" "${large[@]}")
fi
features=()
for target in "${targets[@]}"; do
    [[ " ${large[*]} " != *" $target "* ]] || features=(--features server)
done
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
for part in inline-8bit-counters pc-table trace-compares; do
    coverage+=" -Cllvm-args=-sanitizer-coverage-$part"
done
# A target triple keeps the flags from build scripts.
triple=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="--cfg fuzzing $coverage" cargo build --quiet --locked --release --target "$triple" \
    "${features[@]}" "${targets[@]/#/--bin=}"
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "seeds/$target" "artifacts/$target"
    printf '\n== %s\n' "$target"
    "target/$triple/release/$target" "corpus/$target" "seeds/$target" \
        -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=2048 -print_final_stats=1 2>&1 |
        { grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse|RELOAD|INITED)|^INFO|^stat::(new|aver|slow)' ||
            true; }
done
