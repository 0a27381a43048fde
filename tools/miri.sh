#!/usr/bin/env bash
# Tests under Miri: undefined behaviour and data races in scheduler, probe and what of the runtime
# needs neither mmap nor SIMD. tools/miri.sh [quick|all]; quick leaves out the runtime.
set -euo pipefail
cd "$(dirname "$0")/.."
rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1
# Isolation off: tests read golden files. A seed each time, as threads interleave differently.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-seed=${MIRI_SEED:-0}"
export CARGO_TARGET_DIR=target/miri
miri() { cargo +nightly miri test --quiet "$@"; }
miri -p trail-scheduler --lib
miri -p trail-probe --lib
if [ "${1:-all}" = all ]; then
    miri -p trail-runtime --lib -- mpsc_ring text:: sampling:: model::fields engine::submit_queue
fi
