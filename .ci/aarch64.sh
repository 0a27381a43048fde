#!/usr/bin/env bash
# Tests of the NEON kernels, by emulation where the machine is no Arm: .ci/aarch64.sh [quick|all].
# `quick` is the registers; `all` adds the kernels of the probe and of the model's products, whose
# arithmetic qemu emulates a hundred times slower than a CPU computes it, and the program's answers
# on the bundled model. Nothing here is timed.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
emulator=()
if [ "$(uname -m)" != aarch64 ]; then
    if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user >/dev/null
    fi
    rustup target add "$target" >/dev/null 2>&1
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    emulator=(qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu)
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=${emulator[*]}
fi
tests() { cargo test --quiet --locked --target "$target" "$@"; }
tests -p trail-platform
if [ "${1:-all}" = all ]; then
    tests -p trail-probe --lib -- head:: kernel:: token_filter::
    tests -p trail-cpu-kernels -- --nocapture
    tests -p trail-runtime --lib -- cpu::attend::
    cargo build --quiet --locked -p trail-rt --target "$target"
    .ci/golden.py "${emulator[@]}" "${CARGO_TARGET_DIR:-target}/$target/debug/trail-rt"
fi
