#!/usr/bin/env bash
# Runs lm_eval_check.py. lm-eval comes from PyPI, once, into a cache folder: $TRAIL_TOOLS, or
# ~/.cache/trail-rt/lm_eval. TRAIL_RT is a built program; without it one is built.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=${TRAIL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/trail-rt}/lm_eval
pins=tests/clients/lm_eval/requirements.txt
if ! cmp -s "$pins" "$tools/requirements.txt"; then
    python3 -m venv "$tools"
    if ! "$tools/bin/pip" install --quiet --disable-pip-version-check -r "$pins"; then
        echo "skipped: lm-eval cannot be installed, as PyPI does not answer"
        exit 0
    fi
    cp "$pins" "$tools/requirements.txt"
fi
if [ -z "${TRAIL_RT:-}" ]; then
    cargo build --release --locked
    TRAIL_RT=target/release/trail-rt
fi
"$tools/bin/python" tests/clients/lm_eval_check.py "$TRAIL_RT" "$@"
