#!/usr/bin/env bash
#
# The memory extension beside kernel swap: `swap-bench.sh [OPTIONS]` measures with `everbyte-bench swap` and
# leaves report and results in the target folder. It fails if anything that was paged has wrong contents;
# what misses its target is told, for figures depend on the machine. Needs root.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TARGET=${CARGO_TARGET_DIR:-target}
# Servers of others are started by the program, with its library.
cargo build --quiet --release -p everbyte-bench -p everbyte-cli -p everbyte-preload
"$TARGET/release/everbyte-bench" swap --kernel-swap --output "$TARGET/swap.json" \
    --report "$TARGET/swap.html" "$@" >"$TARGET/swap.txt"
grep -E -B1 '(met|MISSED): ' "$TARGET/swap.txt" || true
echo "ok - paging beside kernel swap, every page compared"
