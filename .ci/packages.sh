#!/usr/bin/env bash
# The published crates: packaged in order and built from their packages (`cargo publish` without the
# upload), their sizes, and a new project outside the tree that adds them from a local registry and
# runs the examples 1, 4 and 7, with the newest versions of all other crates that are for Rust 1.89.
# The compiler that is here compiles them; that 1.89 can is seen in .ci/long. Arguments go to cargo:
# `--no-verify` leaves the builds to that project, `--allow-dirty` takes the tree as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
# Compressed, bytes: trail-ptx has the compiled kernels.
limit=6000000
packages=${CARGO_TARGET_DIR:-target}/package/tmp-registry

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo publish --quiet --dry-run --workspace --locked "$@" 2> "$work/log" ||
    { cat "$work/log" >&2; exit 1; }
grep -v -e 'warning: ignoring' -e 'warning: aborting upload' "$work/log" || true
for file in "$packages"/*.crate; do
    bytes=$(stat -c %s "$file")
    printf '%-34s %8d bytes compressed\n' "$(basename "$file")" "$bytes"
    test "$bytes" -lt "$limit"
done

crates=$(cargo tree --locked -p trail-scheduler --no-default-features -e normal --prefix none |
    sort -u | wc -l)
echo "trail-scheduler without its feature log: $crates crates"
test "$crates" -le 3

.ci/registry.py "$packages" > "$work/address" &
registry=$!
trap 'kill "$registry" || true; rm -rf "$work"' EXIT
until test -s "$work/address"; do
    kill -0 "$registry"
    sleep 0.1
done

# Outside the tree, whose workspace and configuration would count.
mkdir -p "$work/project/.cargo" "$work/project/src/bin"
cp examples/01_embed.rs examples/04_policy.rs examples/07_trace.rs "$work/project/src/bin"
cp -r assets "$work/project/assets"
cat > "$work/project/.cargo/config.toml" <<END
[source.crates-io]
replace-with = "local"
[source.local]
registry = "$(cat "$work/address")"
END
cat > "$work/project/Cargo.toml" <<END
[package]
name = "outside"
version = "0.1.0"
edition = "2024"
rust-version = "1.89"
[profile.dev]
opt-level = 1
# As in this workspace: with checks the CPU kernels take minutes more to compile.
debug = false
debug-assertions = false
overflow-checks = false
END
cd "$work/project"
export CARGO_TARGET_DIR=$work/target
cargo add --quiet trail-runtime trail-probe trail-scheduler trail-simulator
for example in 01_embed 04_policy 07_trace; do
    echo "== $example"
    cargo run --quiet --bin "$example"
done
cargo metadata --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
key = lambda version: tuple(map(int, version.split(".")[:2]))
late = [p["name"] for p in packages if p["rust_version"] and key(p["rust_version"]) > (1, 89)]
jinja = [p["version"] for p in packages if p["name"] == "minijinja"]
print(f"{len(packages)} crates, minijinja {jinja[0]}; for a Rust after 1.89: {late or None}")
sys.exit(bool(late))'
