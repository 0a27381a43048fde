#!/usr/bin/env bash
# The program's packages, in target/packages: for each TARGET an archive with the program, the
# bundled model, man pages, completions and the licences of all crates, and for this machine a
# Debian package.
#
#     deploy/package.sh [--dev] [TARGET ...]
#
# --dev: of the debug build, to check the packages alone.
set -euo pipefail
umask 022
cd "$(dirname "$0")/.."
profile=(--release) folder=release deb=()
if [ "${1:-}" = --dev ]; then
    profile=() folder=debug deb=(--profile dev)
    shift
fi
host=$(rustc -vV | sed -n 's/^host: //p')
targets=("$host")
[ $# = 0 ] || targets=("$@")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
built=${CARGO_TARGET_DIR:-target} files=target/package-files out=target/packages
rm -rf "$files" "$out"
mkdir -p "$files" "$out"
tool() {
    command -v "target/tools/bin/$1" >/dev/null ||
        cargo install --quiet --locked --root target/tools "$1@$2"
}
tool cargo-about 0.9.3
tool cargo-deb 3.8.0

cargo build --locked "${profile[@]}" -p trail-rt
program=$built/$folder/trail-rt
"$program" man-pages "$files/man" >/dev/null
"$program" completions bash > "$files/trail-rt.bash"
"$program" completions zsh > "$files/_trail-rt"
"$program" completions fish > "$files/trail-rt.fish"
target/tools/bin/cargo-about generate --fail --locked --config deploy/licenses/about.toml \
    --output-file "$files/LICENSES.txt" deploy/licenses/about.hbs

for target in "${targets[@]}"; do
    if [ "$target" != "$host" ]; then
        rustup target add "$target" >/dev/null 2>&1
        if [ "$target" = aarch64-unknown-linux-gnu ]; then
            command -v aarch64-linux-gnu-gcc >/dev/null ||
                apt-get install -y -qq gcc-aarch64-linux-gnu libc6-dev-arm64-cross >/dev/null
            export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        fi
        cargo build --locked "${profile[@]}" -p trail-rt --target "$target"
        program=$built/$target/$folder/trail-rt
    else
        program=$built/$folder/trail-rt
    fi
    name=trail-rt-$version-$target
    mkdir -p "$out/$name/completions"
    cp "$program" LICENSE-MIT LICENSE-APACHE README.md "$files/LICENSES.txt" "$out/$name"
    # The program looks for the bundled model beside itself.
    mkdir -p "$out/$name/assets"
    git archive HEAD assets/demo assets/probes | tar -x -C "$out/$name" --exclude=make
    cp -r "$files/man" "$out/$name"
    cp "$files/trail-rt.bash" "$files/_trail-rt" "$files/trail-rt.fish" "$out/$name/completions"
    # The same bytes from the same commit.
    tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$(git log -1 --format=%ct)" -c "$name" | gzip -n > "$out/$name.tar.gz"
    rm -r "${out:?}/$name"
done
target/tools/bin/cargo-deb --no-build --locked "${deb[@]}" --output "$out"
(cd "$out" && sha256sum -- *.tar.gz *.deb | tee SHA256SUMS)
