#!/usr/bin/env bash
#
# The crash explorer on random workloads and random orders of threads. EVERBYTE_CRASH_SEED and
# EVERBYTE_CRASH_CASES say which workloads, EVERBYTE_SCHEDULES how many seeded orders; a failure names
# its own seed. Prints how much was explored.

set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --quiet -p everbyte-block --test crash random -- --nocapture
echo "ok - random workloads"
cargo test --quiet -p everbyte-block --test concurrent -- --nocapture
echo "ok - random orders"
