#!/usr/bin/env bash
#
# The fuzzer's binaries still compile: fuzz/ is a workspace of its own, which nothing else builds. Any toolchain
# will do, and a compiler of C++.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/fuzz \
    cargo check --quiet --locked --manifest-path fuzz/Cargo.toml
echo "ok - the fuzzer's binaries compile"
