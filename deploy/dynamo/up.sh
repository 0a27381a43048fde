#!/usr/bin/env bash
# A router and workers on this machine, with no service beside them:
#   up.sh --workers 4 [--engine sim] [--http 127.0.0.1:8000] [options of the workers]
# Ctrl-C ends all.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
workers=1 http=127.0.0.1:8000 options=()
while [ $# -gt 0 ]; do
    case $1 in
        --workers) workers=${2:?give a number}; shift 2 ;;
        --http) http=${2:?give an address}; shift 2 ;;
        -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) options+=("$1"); shift ;;
    esac
done
if ! [[ $workers =~ ^[1-9][0-9]*$ ]]; then
    echo "up.sh: --workers is '$workers': give a number" >&2
    exit 2
fi
if [ -z "${TRAIL_DYNAMO_BIN:-}" ]; then
    "$here/cargo.sh" build --locked
    TRAIL_DYNAMO_BIN=$here/target/debug
fi
folder=$(mktemp -d)
export DYN_FILE_KV=${DYN_FILE_KV:-$folder/store} DYN_LOG=${DYN_LOG:-error}
# All end together: no other worker takes over, and the model's files are on this machine.
export DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS=0 DYN_SELF_HOST_METADATA=0
children=()
end() {
    trap - EXIT INT TERM
    kill "${children[@]}" 2>/dev/null || true
    wait || true
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 0' INT TERM
# Not from the terminal's group: Ctrl-C reaches this script, which ends them in order.
set -m
"$TRAIL_DYNAMO_BIN/trail-dynamo-router" --http "$http" &
children+=($!)
for _ in $(seq "$workers"); do
    "$TRAIL_DYNAMO_BIN/trail-dynamo-worker" ${options[@]+"${options[@]}"} &
    children+=($!)
done
set +m
# Until one ends.
wait -n
echo "up.sh: a process ended" >&2
exit 1
