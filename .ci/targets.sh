#!/usr/bin/env bash
# Compiles the program for other systems as far as `cargo check` does: .ci/targets.sh [quick|all].
# `quick` is Windows; `all` adds macOS, for which only a Mac can link.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=()
command -v x86_64-w64-mingw32-gcc >/dev/null || tools+=(gcc-mingw-w64-x86-64)
targets=(x86_64-pc-windows-gnu)
if [ "${1:-all}" = all ]; then
    targets+=(aarch64-apple-darwin x86_64-apple-darwin)
    command -v clang >/dev/null || tools+=(clang)
fi
if [ ${#tools[@]} != 0 ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${tools[@]}" >/dev/null
fi
# The build script of ring, which TLS needs, compiles C. Without Apple's headers it takes those of
# the compiler, and one that it only includes: nothing links what comes out.
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
touch "$headers/TargetConditionals.h"
apple="-ffreestanding -nostdlibinc -DRING_CORE_NOSTDLIBINC -I$headers"
export CC_aarch64_apple_darwin=clang CFLAGS_aarch64_apple_darwin=$apple
export CC_x86_64_apple_darwin=clang CFLAGS_x86_64_apple_darwin=$apple
for target in "${targets[@]}"; do
    rustup target add "$target" >/dev/null 2>&1
    RUSTFLAGS="-D warnings" cargo check --locked -p trail-rt --target "$target"
    echo "$target compiles (${SECONDS}s)"
done
