#!/usr/bin/env bash
# Tests and measurements that need a GPU, for a machine that is lent for minutes.
#
#   benches/gpu.sh build BIN
#       on a machine with Rust: trail-rt and the test programs, into folder BIN; says what is
#       carried and fails if it is more than 64 MiB
#   benches/gpu.sh run BIN OUT [SLICE...] [--budget SECONDS] [--state FOLDER]
#       on the machine with the GPU (without Rust or network); see benches/gpu/run.py. Slices:
#       first     the driver, all modules, eager steps, graphs, the tap, a test of each family, the
#                 headline, vectors of instructions for the emulator: 40 s on an H200
#       correct   every other test of the default path, each in a process; some under memcheck
#       figures   whole steps, the overlap, prompts; peers in PyTorch
#       rest      kernels alone, transfers, serving, the megakernel, counters, racecheck: all four
#                 slices take 10 minutes on an H200
#       loads, burst   policies under load (only when named)
#   benches/gpu.sh table OUT
#       tables of what a run measured
#   benches/gpu.sh rehearse
#       all slices, small, on the emulator, with planned faults that must not spread
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
# Size limit of a call: the tracked files of the tree, and BIN.
limit=$((64 << 20))

# The executable of the test program $1.
test_program() {
    cargo test --release --locked --no-run --workspace --test "$1" --message-format=json |
        grep -o "\"executable\":\"[^\"]*/$1-[^\"]*\"" | cut -d'"' -f4 | grep .
}

build() {
    local bin=$1 name program tree programs
    mkdir -p "$bin"
    cargo build --release --locked --workspace --bin trail-rt
    for name in cuda cuda_backend emulator; do
        program=$(test_program "$name")
        cp "$program" "$bin/$name"
    done
    cp "$root/target/release/trail-rt" "$bin"
    strip "$bin"/{trail-rt,cuda,cuda_backend,emulator}
    # Paths of files that the tests read are those of this machine: the run makes a link.
    echo "$root" > "$bin/root"
    tar -cf - -C "$bin" . | xz -9 -T0 > "$bin.tar.xz"
    tree=$(cd "$root" && git ls-files -z | xargs -0 stat -c %s | awk '{ n += $1 } END { print n }')
    programs=$(stat -c %s "$bin.tar.xz")
    ls -l "$bin" "$bin.tar.xz"
    echo "carried: $((tree >> 20)) MiB of tracked files + $((programs >> 20)) MiB of programs," \
        "of $((limit >> 20)) MiB"
    test $((tree + programs)) -le $limit
}

run() {
    local bin=$1 unpacked
    shift
    if [[ $bin == *.tar.xz ]]; then
        unpacked=$(mktemp -d)
        # Python has xz, which the machine may lack.
        python3 -W ignore -m tarfile -e "$bin" "$unpacked"
        bin=$unpacked
    fi
    exec python3 "$here/gpu/run.py" "$bin" "$@"
}

case ${1:-} in
build) build "${2:?benches/gpu.sh build BIN}" ;;
run) run "${2:?benches/gpu.sh run BIN OUT [SLICE...]}" "${@:3}" ;;
table) exec python3 "$here/gpu/table.py" "${2:?benches/gpu.sh table OUT}" ;;
rehearse) exec python3 "$here/gpu/rehearse.py" ;;
*) sed -n '2,22p' "$0"; exit 2 ;;
esac
