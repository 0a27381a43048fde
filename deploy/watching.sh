#!/usr/bin/env bash
# Checks deploy/prometheus and deploy/grafana against a server ($TRAIL_RT) and a real Prometheus,
# from Debian's package, unpacked into a cache folder; see watching.py.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=${TRAIL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/trail-rt}/watching
if [ ! -x "$tools/usr/bin/promtool" ]; then
    mkdir -p "$tools"
    (cd "$tools" && apt-get download --quiet prometheus && dpkg -x prometheus_*.deb .)
fi
if [ ! -x "$tools/bin/python" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check \
        grafana-foundation-sdk==1769699998!10.1.0
fi
"$tools/bin/python" deploy/watching.py "${TRAIL_RT:-target/release/trail-rt}" "$tools/usr/bin"
