#!/usr/bin/env bash
# Fuzzes every target, or the named ones: fuzz/run.sh SECONDS [TARGET...]. Seeds are in
# fuzz/seeds/TARGET, what is found goes to fuzz/corpus/TARGET and fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:?usage: fuzz/run.sh SECONDS [TARGET...]}
shift
if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --quiet --locked cargo-fuzz --version 0.13.1
fi
# The instrumentation is unstable; address sanitizer would need nightly, and the code under test
# is safe Rust. A slow input counts as a failure.
export RUSTC_BOOTSTRAP=1
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    mapfile -t targets < <(cargo fuzz list)
fi
for target in "${targets[@]}"; do
    mkdir -p "corpus/$target" "seeds/$target"
    printf '\n== %s\n' "$target"
    cargo fuzz run --sanitizer none "$target" "corpus/$target" "seeds/$target" -- \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 2>&1 |
        grep -vE '^#[0-9]+\s+(NEW|REDUCE|pulse|RELOAD)'
done
