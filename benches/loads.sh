#!/usr/bin/env bash
# Measures policies over loads on the engine: all bundled prompts under three policies, three
# arrival seeds. Writes one JSON object per line and seed to FILE. Time is simulated: other load of
# the machine changes no ratio. One thread: on a busy machine two threads wait for each other.
#   benches/loads.sh FILE [PROMPTS]
set -euo pipefail
out=${1:?usage: benches/loads.sh FILE [PROMPTS]}
prompts=${2:-0}
cd "$(dirname "$0")/.."
cargo build --release --locked
scratch=$(mktemp -d)
loads=0.7,0.9,1.1,1.5,2.0
: > "$out"
for seed in 1 2 3; do
    # A burst has no arrival times, so its seed means nothing.
    target/release/trail-rt demo --prompts "$prompts" --policies fcfs,trail,oracle --threads 1 \
        --load "$loads$([ "$seed" = 1 ] && echo ,burst)" --seed "$seed" --out "$scratch" --json \
        >> "$out"
done
