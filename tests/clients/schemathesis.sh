#!/usr/bin/env bash
# Sends requests made from a server's OpenAPI document to that server, by schemathesis: no answer of
# status 5xx, no status, type or body that the document does not have, no malformed field accepted.
# It comes from PyPI, once, into a cache folder: $TRAIL_TOOLS, or ~/.cache/trail-rt. TRAIL_RT is a
# built program; without it one is built.
#
# usage: schemathesis.sh [EXAMPLES]      requests of each operation, 200
set -euo pipefail
cd "$(dirname "$0")/../.."

version=4.32.5
tools=${TRAIL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/trail-rt}/schemathesis-$version
if [ ! -e "$tools/installed" ]; then
    python3 -m venv "$tools"
    if ! "$tools/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"; then
        echo "skipped: schemathesis cannot be installed, as PyPI does not answer"
        exit 0
    fi
    touch "$tools/installed"
fi
if [ -z "${TRAIL_RT:-}" ]; then
    cargo build --release --locked
    TRAIL_RT=target/release/trail-rt
fi

log=$(mktemp)
# A short context, as most requests leave the length of their answers out.
"$TRAIL_RT" serve --port 0 --max-model-len 96 >"$log" 2>&1 &
server=$!
work=$(mktemp -d)
trap 'kill "$server" && wait "$server"; rm -r "$log" "$work"' EXIT
until url=$(grep -om1 'http://127[^ ,]*' "$log"); do
    kill -0 "$server" 2>/dev/null || { cat "$log"; exit 1; }
    sleep 0.1
done

# The document, with the name of the model: requests of another one get 404, and nothing is read.
document=$work/openapi.json
"$tools/bin/python" - "$url" "$document" <<'END'
import json, sys, urllib.request
url, path = sys.argv[1:]
read = lambda path: json.load(urllib.request.urlopen(url + path))
document, model = read("/openapi.json"), read("/v1/models")["data"][0]["id"]
for schema in document["components"]["schemas"].values():
    if "model" in (fields := schema.get("properties", {})) and "object" not in fields:
        nullable = "null" in fields["model"]["type"]
        fields["model"] = {"enum": [model, None] if nullable else [model]}
json.dump(document, open(path, "w"))
END

# Valid values can be refused together (a prompt above the context, tools without a template that
# shows them), which no schema says: `positive_data_acceptance` is left out.
# Its cache of failures is written where it runs.
cd "$work"
"$tools/bin/schemathesis" run "$document" --url "$url" --max-examples "${1:-200}" --seed 35 \
    --phases examples,coverage,fuzzing --exclude-checks positive_data_acceptance \
    --suppress-health-check all --continue-on-failure --no-color
