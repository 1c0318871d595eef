#!/usr/bin/env bash
#
# Runs every end-to-end script, three at a time; see tally.sh for how it ends. CRASH_LEDGER_ROUNDS,
# CRASH_TIGHT_ROUNDS, CRASH_FS_ROUNDS, CRASH_MOUNT_ROUNDS, CRASH_CACHE_ROUNDS and CACHE_STORAGE_KILLS
# set how often servers are killed, FAILING_BACKING_ROUNDS how often a backing device fails, MOUNT_SUITES how
# long suites run on a mount, DIFFERENTIAL_SEEDS how often a mount is compared with ext4, RUN_ROUNDS how often
# programs with leases are killed, SQLITE_ROUNDS how often SQLite with the extension is killed, PROGRAMS how many
# programs of others run at half of their memory, ADVERSARY_ROUNDS how often files are swapped under a copy,
# RUN_COMMANDS how many commands start under `run` (0: all).

cd "$(dirname "$0")" || exit 1
LANES=${LANES:-3}
source ./tally.sh

run cli.sh
run clients.sh
run metrics.py
run prometheus.py
run filesystems.sh
# Python's binding of libnbd keeps some 40 MiB a round until its process ends.
for ((left = ${CRASH_LEDGER_ROUNDS:-30}; left > 0; left -= 100)); do
    run crash-ledger.py $((left < 100 ? left : 100)) --plant all
done
run crash-ledger.py "${CRASH_TIGHT_ROUNDS:-8}" --tight
run crash-fs.sh "${CRASH_FS_ROUNDS:-12}"
run crash-mount.sh "${CRASH_MOUNT_ROUNDS:-6}"
run mount-helper.sh
run mount-suites.sh "${MOUNT_SUITES:-short}"
run differential.sh "${DIFFERENTIAL_SEEDS:-1}" 2500
run crash-cache.sh "${CRASH_CACHE_ROUNDS:-6}"
run cache-storage.sh "${CACHE_STORAGE_KILLS:-4}"
run failing-backing.py "${FAILING_BACKING_ROUNDS:-7}"
run failing-backing.py 21 --plant
run run.sh "${RUN_ROUNDS:-3}"
run run-users.sh
run run-corners.sh
run run-commands.sh "${RUN_COMMANDS:-12}"
run run-memory.sh
run programs.sh "${PROGRAMS:-short}"
run sqlite-extension.py "${SQLITE_ROUNDS:-20}"
run docs.sh
run adversary.sh "${ADVERSARY_ROUNDS:-200}"
run open-time.sh
tally
