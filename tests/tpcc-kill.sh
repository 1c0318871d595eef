#!/usr/bin/env bash
#
# kill -9 under TPC-C: `tpcc-kill.sh [ROUNDS]` lets a child run the benchmark's transactions through
# everbyte-sqlite, by turns in every journal mode and with commits that are durable at once or with
# checkpoints, kills it, and judges what is there. Faults are planted afterwards: the judge must
# notice every one.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ROUNDS=${1:-200}
cargo build --quiet --release -p everbyte-bench
BENCH=${CARGO_TARGET_DIR:-target}/release/everbyte-bench

"$BENCH" tpcc-kill --rounds "$ROUNDS" --seed "$RANDOM"
for fault in lost torn lazy; do
    "$BENCH" tpcc-kill --rounds 60 --plant "$fault" --seed "$RANDOM"
done
echo "ok - TPC-C after $ROUNDS kills"
