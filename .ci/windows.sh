#!/usr/bin/env bash
# The program for Windows, compiled by mingw-w64 and run under Wine: the bundled model's answers
# against transformers' and the demo's ratios against those of this machine's own program
# (TRAIL_RT, else the debug build), the server, and what is refused there. Nothing here is timed.
set -euo pipefail
cd "$(dirname "$0")/.."
own=${TRAIL_RT:-${CARGO_TARGET_DIR:-target}/debug/trail-rt}
target=x86_64-pc-windows-gnu
tools=()
command -v x86_64-w64-mingw32-gcc >/dev/null || tools+=(gcc-mingw-w64-x86-64)
command -v wine >/dev/null || tools+=(wine wine64)
if [ ${#tools[@]} != 0 ]; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${tools[@]}" >/dev/null
fi
rustup target add "$target" >/dev/null 2>&1
cargo build --locked -p trail-rt --target "$target"
program=${CARGO_TARGET_DIR:-target}/$target/debug/trail-rt.exe

work=$(mktemp -d)
export WINEPREFIX=$work/prefix WINEDEBUG=-all DISPLAY=
trap 'wineserver -k || true; rm -rf "$work"' EXIT
wine wineboot --init >/dev/null 2>&1
# Rust's standard library takes random numbers from a library that Debian 12's Wine (8.0) lacks.
library=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
if [ ! -e "$library" ]; then
    x86_64-w64-mingw32-gcc -shared -o "$library" -x c - -ladvapi32 <<'END'
#include <windows.h>
#include <ntsecapi.h>
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    return RtlGenRandom(data, (ULONG)size);
}
END
fi
.ci/golden.py wine "$program"

demo() { "${@:2}" demo --prompts 40 --policies fcfs,trail,oracle --json --out "$work/$1"; }
ratios() { grep -o '"ratio_to_fcfs":{.*' | grep -o '^[^}]*}[^}]*}}'; }
demo own "$own" | ratios > "$work/own.ratios"
demo wine wine "$program" | ratios > "$work/wine.ratios"
test -s "$work/own.ratios" && cmp "$work/own.ratios" "$work/wine.ratios"
test -s "$work/wine/demo.svg"

# Takes the words of a refusal, then the arguments that it is for.
refused() {
    local words=$1 line
    shift
    if line=$(wine "$program" "$@" 2>&1 >/dev/null); then
        echo "$* is not refused" >&2
        exit 1
    fi
    grep -F -- "$words" <<< "$line"
}
refused 'CUDA runs on Linux alone: choose --device cpu' generate --prompt hi --device cuda
refused '--uds is for Linux and macOS' serve --uds "$work/socket"
refused 'this system pins no threads: leave it out' generate --prompt hi --cpu-strict 1

wine "$program" serve --port 0 2> "$work/log" &
server=$!
until url=$(grep -om1 'http://127[0-9.:]*' "$work/log"); do
    kill -0 "$server"
    sleep 0.1
done
content() {
    curl -sS --fail --max-time 60 "$url/v1/chat/completions" -d "$1" |
        grep -o '"content":"[^"]*"' | cut -d'"' -f4
}
body='"model":"demo","max_tokens":8,"temperature":0,"messages":[{"role":"user","content":"Hi"}]'
curl -sS --fail "$url/health"
whole=$(content "{$body}")
streamed=$(content "{$body,\"stream\":true}" | tr -d '\n')
test -n "$whole" && test "$whole" = "$streamed"
# Wine turns SIGINT into Ctrl-C.
kill -INT "$server"
wait "$server"
grep 'finishes 0 requests' "$work/log"
echo "the server under Wine: one answer whole and streamed, and a drain by Ctrl-C"
