#!/usr/bin/env bash
# Runs the clients of this folder against servers of the bundled model and, if TRAIL_MODEL names
# one, of that model. They come from PyPI and npm, once, into a cache folder: $TRAIL_TOOLS, or
# ~/.cache/trail-rt. TRAIL_RT is a built program; without it one is built.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=${TRAIL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/trail-rt}/clients
here=tests/clients
mkdir -p "$tools"
if ! cmp -s "$here/requirements.txt" "$tools/requirements.txt"; then
    python3 -m venv "$tools"
    if ! "$tools/bin/pip" install --quiet --disable-pip-version-check \
        -r "$here/requirements.txt"; then
        echo "skipped: the clients cannot be installed, as PyPI does not answer"
        exit 0
    fi
    cp "$here/requirements.txt" "$tools/requirements.txt"
fi
has_npm=yes
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "skipped: the AI SDK, as node and npm are not installed"
    has_npm=
elif ! cmp -s "$here/package.json" "$tools/npm/installed.json"; then
    mkdir -p "$tools/npm"
    cp "$here/package.json" "$tools/npm/package.json"
    if npm install --prefix "$tools/npm" --silent --no-audit --no-fund; then
        cp "$here/package.json" "$tools/npm/installed.json"
    else
        echo "skipped: the AI SDK cannot be installed, as npm's registry does not answer"
        has_npm=
    fi
fi
if [ -z "${TRAIL_RT:-}" ]; then
    cargo build --release --locked
    TRAIL_RT=target/release/trail-rt
fi

# Starts a server with the given options and runs the checks on it.
check() {
    local log url server rc=0
    log=$(mktemp)
    "$TRAIL_RT" serve --port 0 "$@" >"$log" 2>&1 &
    server=$!
    trap 'kill "$server" 2>/dev/null || true' EXIT
    for _ in $(seq 600); do
        url=$(grep -om1 'http://127[^ ,]*' "$log") && break
        kill -0 "$server" 2>/dev/null || { cat "$log"; return 1; }
        sleep 0.1
    done
    "$tools/bin/python" "$here/openai_check.py" "$url" || rc=1
    "$tools/bin/python" "$here/dialects_check.py" "$url" || rc=1
    "$tools/bin/python" "$here/frameworks_check.py" "$url" || rc=1
    if [ -n "$has_npm" ]; then
        # Packages are looked for beside the script.
        cp "$here/ai_sdk_check.mjs" "$tools/npm/"
        node "$tools/npm/ai_sdk_check.mjs" "$url" || rc=1
    fi
    "$tools/bin/python" "$here/structured_check.py" "$url" --schemas "${SCHEMAS:-300}" || rc=1
    kill "$server"
    wait "$server" || rc=1
    rm "$log"
    return "$rc"
}

failed=0
echo "-- the bundled model"
check || failed=1
if [ -n "${TRAIL_MODEL:-}" ]; then
    echo "-- $TRAIL_MODEL"
    check --model "$TRAIL_MODEL" || failed=1
fi
exit "$failed"
