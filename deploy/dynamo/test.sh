#!/usr/bin/env bash
# Builds the integration and runs its tests: units, Dynamo's conformance kit, and processes that are
# killed while they stream. It needs Rust, a C++ compiler, CMake, Python and the registries.
set -euo pipefail
cd "$(dirname "$0")"

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "formatting"
cargo fmt --all --check

step "units, and Dynamo's conformance kit"
./cargo.sh test --locked

step "time of a decision"
./cargo.sh run --locked --quiet -p trail-dynamo-router --example decision

step "processes that fail"
./cargo.sh build --locked
python3 tests/failover.py

step "prefix caches"
python3 tests/prefix.py

step "streams of the bundled model, killed at a random token"
python3 tests/same_text.py 50

step "done"
