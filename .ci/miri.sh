#!/usr/bin/env bash
# Tests under Miri: undefined behaviour and data races where there is unsafe code or an atomic, and
# neither mmap nor SIMD. .ci/miri.sh [quick|all]; `all` adds the kernels of the probe, which take
# minutes, and the thread pool of the runtime, whose dependencies take minutes to build.
#
# Left out, as they prove nothing about memory: the scheduler and what of the other crates is safe
# code (numerics, parsers, which are fuzzed), and the head's tolerance, which is about numbers.
set -euo pipefail
cd "$(dirname "$0")/.."
rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal
rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1
# Isolation off: tests read the clock. Floats as on a CPU: Miri's vary in the last bit, and tests
# compare bits. A seed each time, as threads interleave differently.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-deterministic-floats"
MIRIFLAGS+=" -Zmiri-seed=${MIRI_SEED:-0}"
export CARGO_TARGET_DIR=target/miri
miri() { cargo +nightly miri test --quiet --locked "$@"; }
# The runtime's queues, event log and tap slots, without the runtime.
miri -p trail-loom --lib
miri -p trail-probe --lib -- cell::
if [ "${1:-all}" = all ]; then
    # The kernels in their portable form.
    miri -p trail-probe --lib -- head:: kernel:: --skip the_tolerance_is_not_slack
    miri -p trail-runtime --lib -- cpu::pool
fi
