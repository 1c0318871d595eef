#!/usr/bin/env bash
#
# The memory extension and kernel swap: `swap-bench.sh [OPTIONS]` measures with `everbyte-bench swap` and leaves
# the results in the target folder, as swap.json and as text. It fails if paged memory has wrong contents. Needs
# root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TARGET=${CARGO_TARGET_DIR:-target}
# Servers of others are started by the program, with its library.
cargo build --quiet --release -p everbyte-bench -p everbyte-cli -p everbyte-preload
"$TARGET/release/everbyte-bench" swap --kernel-swap --output "$TARGET/swap.json" "$@" \
    >"$TARGET/swap.txt"
echo "ok - paging beside kernel swap, every page compared"
