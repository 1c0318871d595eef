#!/usr/bin/env bash
#
# kill -9 under file systems: ext4, XFS and btrfs in rotation, each with a writer that notes what
# fsync acknowledged. After every kill the file system is mounted again on a new server, must hold
# every acknowledged file, and must satisfy its own checker.
#
# usage: crash-fs.sh ROUNDS

source "$(dirname "$0")/lib.sh"
need nbdfuse losetup fusermount3 mkfs.ext4 e2fsck mkfs.xfs xfs_repair mkfs.btrfs btrfs "$PYTHON"

ROUNDS=${1:?usage: crash-fs.sh ROUNDS}
TYPES=(ext4 xfs btrfs)
MOUNT=$SCRATCH/mount
mkdir "$MOUNT"

# mount_here TYPE: like mount_loop, but always at the same place, so that names in ledgers last.
mount_here() {
    on_exit unmount "$SCRATCH/mount"
    MOUNT=$SCRATCH/mount
    root mount -t "$1" "$LOOP" "$MOUNT" || fail "$1 cannot be mounted after a crash"
}

one_round() {
    local fs=$1 checked lenient=()
    [[ $fs != btrfs ]] || lenient=(--lenient)
    start_server "$FAST/$fs.pool" "$fs"
    attach_loop "$URI"
    mount_here "$fs"
    start_fsync_writer "$MOUNT" "$SCRATCH/$fs.ledger"
    kill_under_fsync_writer
    tear_down

    start_server "$FAST/$fs.pool" "$fs"
    attach_loop "$URI"
    mount_here "$fs"
    checked=$(root "$PYTHON" "$E2E/fsync_writer.py" verify "$MOUNT" "$SCRATCH/$fs.ledger" \
        "${lenient[@]}") ||
        fail "$fs lost what fsync had acknowledged"
    unmount "$MOUNT"
    check_fs "$fs" "$LOOP"
    tear_down
    stop_server
    ACKNOWLEDGED=$((ACKNOWLEDGED + checked))
    say "round $ROUND: $fs: $checked files acknowledged meanwhile, all intact, clean"
}

for fs in "${TYPES[@]}"; do
    new_pool "$FAST/$fs.pool" 448M "$fs" 384M
    : >"$SCRATCH/$fs.ledger"
    start_server "$FAST/$fs.pool" "$fs"
    attach_loop "$URI"
    make_fs "$fs" "$LOOP"
    tear_down
    stop_server
done
ACKNOWLEDGED=0
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
    one_round "${TYPES[(ROUND - 1) % ${#TYPES[@]}]}"
done
[[ $ACKNOWLEDGED -ge $ROUNDS ]] || fail "the writers acknowledged next to nothing"
for fs in "${TYPES[@]}"; do
    "$EVERBYTE" pool check "$FAST/$fs.pool" >/dev/null || fail "the pool of $fs is not clean"
done
ok "$ROUNDS rounds of kill -9 under ${TYPES[*]}, all $ACKNOWLEDGED acknowledged files intact"
