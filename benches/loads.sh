#!/usr/bin/env bash
# Measures the table over loads of docs/results.md: writes one JSON object per line to FILE.
#   benches/loads.sh FILE [PROMPTS]
set -euo pipefail
out=${1:?usage: benches/loads.sh FILE [PROMPTS]}
prompts=${2:-0}
cd "$(dirname "$0")/.."
cargo build --release --locked
scratch=$(mktemp -d)
run() {
    target/release/trail-rt demo --prompts "$prompts" --policies fcfs,trail,oracle \
        --out "$scratch" --json "$@"
}
: > "$out"
for load in 0.7 0.9 1.1 1.5 2.0; do
    run --load "$load" >> "$out"
done
run --arrivals burst >> "$out"
