#!/usr/bin/env bash
# Runs the clients of this folder against servers of the bundled model and, if TRAIL_MODEL names
# one, of that model. They come from PyPI and npm, once, into a cache folder: $TRAIL_TOOLS, or
# ~/.cache/trail-rt. TRAIL_RT is a built program; without it one is built.
#
# usage: run.sh [SCHEMAS]      number of schemas of structured_check.py, 300
set -euo pipefail
cd "$(dirname "$0")/../.."

schemas=${1:-300}
# The server reads the variable too.
model=${TRAIL_MODEL:-}
unset TRAIL_MODEL

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
    echo "skipped: the AI SDK and the page, as node and npm are not installed"
    has_npm=
elif ! cmp -s "$here/package.json" "$tools/npm/installed.json"; then
    mkdir -p "$tools/npm"
    cp "$here/package.json" "$tools/npm/package.json"
    if npm install --prefix "$tools/npm" --silent --no-audit --no-fund; then
        cp "$here/package.json" "$tools/npm/installed.json"
    else
        echo "skipped: the AI SDK and the page, as npm's registry does not answer"
        has_npm=
    fi
fi
browser=${CHROMIUM:-$(command -v chromium || true)}
[ -n "$browser" ] || echo "skipped: the page, as chromium is not installed"
# Programs with dependencies that exclude each other, each in an environment of its name.
programs=("llama-index llama-index-llms-openai-like==0.8.1" "llm llm==0.36"
    "aider aider-chat==0.86.2" "aiperf aiperf==0.13.0")
for program in "${programs[@]}"; do
    read -r name package <<<"$program"
    folder=$tools/programs/$name
    [ "$(cat "$folder/installed" 2>/dev/null)" != "$package" ] || continue
    python3 -m venv --clear "$folder"
    if "$folder/bin/pip" install --quiet --disable-pip-version-check "$package"; then
        echo "$package" >"$folder/installed"
    else
        echo "skipped: $package cannot be installed"
        rm -rf "$folder"
    fi
done
if [ -z "${TRAIL_RT:-}" ]; then
    cargo build --release --locked
    TRAIL_RT=target/release/trail-rt
fi

failed=0
log=$(mktemp)
server=
trap '[ -z "$server" ] || kill "$server"; rm "$log"' EXIT

# Starts a server with the given options; its address is then in `url`.
serve() {
    echo "-- trail-rt serve $*"
    "$TRAIL_RT" serve --port 0 "$@" >"$log" 2>&1 &
    server=$!
    until url=$(grep -om1 'http://127[^ ,]*' "$log"); do
        kill -0 "$server" 2>/dev/null || { server=; cat "$log"; exit 1; }
        sleep 0.1
    done
}

# Ends it; it must have no request left.
stop() {
    kill "$server"
    wait "$server" || failed=1
    server=
}

check() {
    "$@" || failed=1
}

python="$tools/bin/python"
every_check() {
    serve "$@"
    check "$python" "$here/openai_check.py" "$url"
    check "$python" "$here/frameworks_check.py" "$url"
    if [ -n "$has_npm" ]; then
        # Packages are looked for beside the script.
        cp "$here/ai_sdk_check.mjs" "$tools/npm/"
        check node "$tools/npm/ai_sdk_check.mjs" "$url"
        if [ -n "$browser" ]; then
            cp "$here/page_check.mjs" "$tools/npm/"
            check env CHROMIUM="$browser" node "$tools/npm/page_check.mjs" "$url" "$TRAIL_RT"
        fi
    fi
    check "$python" "$here/structured_check.py" "$url" --schemas "$schemas" --max-tokens 600
    stop
}

programs_check() {
    # Few enough that a load above the capacity is refused in part.
    serve --max-requests 48 "$@"
    check python3 "$here/programs_check.py" "$url" --folder "$tools/programs"
    stop
}

every_check
programs_check
check python3 "$here/browser_check.py" "$TRAIL_RT"
serve --api-key sk-check
check "$python" "$here/dialects_check.py" "$url" sk-check
stop
if [ -n "$model" ]; then
    every_check --model "$model"
    programs_check --model "$model"
fi
exit "$failed"
