#!/usr/bin/env bash
#
# What is too long for every change: machine kills on every kind of medium, with planted losses that
# the judge must notice; the kernel's NBD client under machine kills; kill -9 under SQLite and under
# TPC-C; crashes of random workloads with new seeds; a POSIX suite and fsx on a mount; and the
# end-to-end scripts with more rounds; the memory extension beside kernel swap; and the mutants. Needs the packages in .ci/run,
# and redis-server, redis-tools, memcached, rustc and hpcc; without a tool, or a right, that a test needs, it
# fails. See e2e/tally.sh for how it ends.

cd "$(dirname "$0")" || exit 1
source e2e/tally.sh
# Tests that find a tool missing, or may not use it, fail instead of saying so.
export CI=true
export CRASH_LEDGER_ROUNDS=${CRASH_LEDGER_ROUNDS:-300}
export CRASH_TIGHT_ROUNDS=${CRASH_TIGHT_ROUNDS:-60}
export CRASH_FS_ROUNDS=${CRASH_FS_ROUNDS:-60}
export CRASH_MOUNT_ROUNDS=${CRASH_MOUNT_ROUNDS:-50}
export MOUNT_SUITES=${MOUNT_SUITES:-full}
export DIFFERENTIAL_SEEDS=${DIFFERENTIAL_SEEDS:-40}
export CRASH_CACHE_ROUNDS=${CRASH_CACHE_ROUNDS:-50}
export CACHE_STORAGE_KILLS=${CACHE_STORAGE_KILLS:-30}
export FAILING_BACKING_ROUNDS=${FAILING_BACKING_ROUNDS:-50}
export RUN_ROUNDS=${RUN_ROUNDS:-50}
export PROGRAMS=${PROGRAMS:-full}

# Random workloads are new ones every night; the number printed brings tonight's back.
export EVERBYTE_CRASH_SEED=${EVERBYTE_CRASH_SEED:-$((10#$(date -u +%Y%m%d) * 100000))}
export EVERBYTE_CRASH_CASES=${EVERBYTE_CRASH_CASES:-2000}
export EVERBYTE_SCHEDULES=${EVERBYTE_SCHEDULES:-1500}
echo "EVERBYTE_CRASH_SEED=$EVERBYTE_CRASH_SEED EVERBYTE_CRASH_CASES=$EVERBYTE_CRASH_CASES"
run explore.sh
run fuzz-check.sh
run mutants.sh

run machine/kill.py 20 --plant
run machine/kill.py 10 --medium eadr
run machine/kill.py 10 --mount --plant
run machine/kill.py 20 --medium devdax --plant
run machine/kill.py 20 --medium file --plant
run machine/swap.py 5
run machine/vhost.py 100 --small 1500 --large-mib 8
run machine/client.py 10 --plant --small 1500 --large-mib 8
run sqlite-kill.sh 200
run tpcc-kill.sh 200
run e2e/posix.sh 50000
run e2e/request-counts.py
run e2e/run-all.sh
run swap-bench.sh
GUEST_SUITE=trixie run package.sh
tally
