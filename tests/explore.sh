#!/usr/bin/env bash
#
# The crash explorer on random workloads, on every image of tiny ones, and on random orders of threads.
# Then regions of the memory extension under stress, EVERBYTE_SWAP_SECONDS for each kind of it.
# EVERBYTE_CRASH_SEED and EVERBYTE_CRASH_CASES say which workloads, EVERBYTE_SCHEDULES how many seeded
# orders; a failure names its own seed. Prints how much was explored.

set -euo pipefail
cd "$(dirname "$0")/.."

cargo test --quiet -p everbyte-block --test crash -- --nocapture
echo "ok - every workload, and random ones"
EVERBYTE_CRASH_FILLED=40 cargo test --quiet -p everbyte-block --test crash promises -- --nocapture
echo "ok - every image"
cargo test --quiet -p everbyte-block --test concurrent -- --nocapture
echo "ok - random orders"
cargo test --quiet -p everbyte-pool --test pool -- --nocapture
cargo test --quiet -p everbyte-extent --test extent -- --nocapture
cargo test --quiet -p everbyte-fs --test fs crash:: -- --nocapture
echo "ok - every workload of a pool, of its extents and of a file system"
EVERBYTE_CRASH_CASES=${EVERBYTE_CACHE_CASES:-200} \
    cargo test --quiet -p everbyte-cache --test cache crash -- --nocapture
echo "ok - random workloads of a cache"
EVERBYTE_CRASH_CASES=${EVERBYTE_FS_CASES:-200} \
    cargo test --quiet -p everbyte-fs --test fs sequences -- --nocapture
echo "ok - random sequences on a file system"
EVERBYTE_FUZZ_INPUTS=${EVERBYTE_FUZZ_INPUTS:-10000} \
    cargo test --quiet -p everbyte-fuzz --test corpora random_inputs
echo "ok - random images of file systems, and operations on them"
cargo test --quiet -p everbyte-fs --test fs concurrent -- --nocapture
echo "ok - random orders on a file system"
cargo test --quiet -p everbyte-swap --lib region::paged -- --nocapture
echo "ok - random orders of faults and evictions"
EVERBYTE_SWAP_SECONDS=${EVERBYTE_SWAP_SECONDS:-120} cargo test --quiet -p everbyte-swap --test region stress
echo "ok - regions under stress"
