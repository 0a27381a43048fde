#!/usr/bin/env bash
# Checks what deploy/package.sh made: unpacks the Debian package and the archives, runs their
# programs on the bundled model (those of another CPU by qemu), holds the unit against systemd's
# own checks, renders the manual, and completes a command. The server runs outside of the unit's
# sandbox, which needs systemd as PID 1.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/target/packages
for tool in man:man-db systemd-analyze:systemd dpkg-deb:dpkg qemu-aarch64:qemu-user; do
    command -v "${tool%:*}" >/dev/null || apt-get install -y -qq "${tool#*:}" >/dev/null
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
(cd "$out" && sha256sum --quiet --check SHA256SUMS)

answers() {
    # In an empty folder: neither the tree nor the current folder has the model.
    "$@" generate --prompt 'Count from 3 to 9.' --max-tokens 12 --temperature 0 --threads 2
}

echo "== Debian package"
dpkg-deb -x "$out"/*.deb root
dpkg-deb -e "$out"/*.deb control
dpkg-deb -f "$out"/*.deb Package Version Architecture Depends
grep -qx /etc/trail-rt/trail.toml control/conffiles
sh -n control/postinst
grep -q 'systemd-sysusers .*trail-rt.conf' control/postinst
grep -q 'u trail-rt' root/usr/lib/sysusers.d/trail-rt.conf
test -s root/usr/share/doc/trail-rt/LICENSES.txt
test -s root/usr/share/doc/trail-rt/copyright
root/usr/bin/trail-rt --version
answers root/usr/bin/trail-rt | tee answer
test -s answer

echo "== its service"
unit=$(find root -name trail-rt.service)
# As on a machine where it is installed: the paths of the unit are absolute.
sed "s#/usr/bin/trail-rt#$work/root/usr/bin/trail-rt#" "$unit" > trail-rt.service
systemd-analyze verify --man=no "$work/trail-rt.service"
systemd-analyze security --offline=true --threshold=25 "$work/trail-rt.service" | tail -1
root/usr/bin/trail-rt serve --config root/etc/trail-rt/trail.toml --port 0 2> log &
server=$!
until url=$(grep -om1 'http://127[^ ,]*' log); do
    kill -0 "$server"
    sleep 0.1
done
python3 - "$url" <<'END'
import json, sys, urllib.request
body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4}).encode()
answer = json.load(urllib.request.urlopen(sys.argv[1] + "/v1/completions", body))
print(answer["usage"])
END
kill "$server"
wait "$server"

echo "== manual and completions"
pages=0
for page in root/usr/share/man/man1/*.1*; do
    warnings=$(MANWIDTH=80 man --warnings -E UTF-8 -l "$page" 2>&1 >/dev/null)
    test -z "$warnings" || { echo "$page: $warnings"; exit 1; }
    pages=$((pages + 1))
done
echo "$pages pages without a warning"
bash --norc -c '. "$1"; COMP_WORDS=(trail-rt ser); COMP_CWORD=1
    _trail__rt trail-rt ser trail-rt; test "${COMPREPLY[*]}" = serve' \
    bash root/usr/share/bash-completion/completions/trail-rt

for archive in "$out"/*.tar.gz; do
    echo "== $(basename "$archive")"
    tar -xzf "$archive"
    folder=$(basename "$archive" .tar.gz)
    runner=()
    case $folder in
        *"$(uname -m)"*) ;;
        *aarch64*) runner=(qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu) ;;
    esac
    "${runner[@]}" "$folder/trail-rt" --version
    answers "${runner[@]}" "$folder/trail-rt" | tee answer
    test -s answer
    test -s "$folder/LICENSES.txt" && test -s "$folder/man/trail-rt-serve.1"
done
