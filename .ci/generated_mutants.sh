#!/usr/bin/env bash
# Generated bugs (cargo-mutants) of the scheduler and the probe: .ci/generated_mutants.sh [K/N], by
# default the shard of the day of the year, so that a year sees all. Prints the mutants that no test
# of their crate finds; they do not fail the run, as many change nothing that a caller could see.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo mutants --version 2>/dev/null || cargo install --locked cargo-mutants
day=$((10#$(date -u +%j) - 1))
out=target/generated-mutants
mkdir -p "$out"
status=0
# Baseline included: a tree whose tests fail says nothing about mutants.
cargo mutants --package trail-scheduler --package trail-probe --shard "${1:-$day/366}" \
    --timeout 120 --no-times --output "$out" || status=$?
# 2: some mutants were missed; 3: a test ran into the limit of time, which counts as found.
case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
printf 'survivors:\n'
cat "$out/mutants.out/missed.txt"
