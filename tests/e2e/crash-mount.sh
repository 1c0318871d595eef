#!/usr/bin/env bash
#
# kill -9 of a mount: a file system of a pool, with a writer that notes what fsync acknowledged. After
# every kill it is mounted again at the same place, must hold every acknowledged file, and the pool must
# be sound. First it is used as people use one: a tree is copied in, packed, linked, and compared.
#
# usage: crash-mount.sh ROUNDS

source "$(dirname "$0")/lib.sh"
need fusermount3 umount tar sha256sum "$PYTHON"

ROUNDS=${1:?usage: crash-mount.sh ROUNDS}
LEDGER=$SCRATCH/ledger
one_round() {
    local checked
    mount_files
    start_fsync_writer "$MOUNT" "$LEDGER"
    kill_under_fsync_writer

    mount_files
    checked=$(root "$PYTHON" "$E2E/fsync_writer.py" verify "$MOUNT" "$LEDGER") ||
        fail "the file system lost what fsync had acknowledged"
    "$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not sound"
    stop_server
    ACKNOWLEDGED=$((ACKNOWLEDGED + checked))
    say "round $ROUND: $checked files acknowledged meanwhile, all intact, sound"
}

new_files 384
mount_files
tar -C "$TOP" --exclude=target --exclude=.git -cf "$SCRATCH/tree.tar" crates docs tests
mkdir "$MOUNT/tree" "$SCRATCH/tree"
tar -C "$SCRATCH/tree" -xf "$SCRATCH/tree.tar"
tar -C "$MOUNT/tree" -xf "$SCRATCH/tree.tar"
cp -al "$MOUNT/tree" "$MOUNT/links"
has_same_files "$MOUNT/tree" "$SCRATCH/tree" || fail "the copied tree differs"
stop_server
mount_files
has_same_files "$MOUNT/links" "$SCRATCH/tree" || fail "the tree differs after mounting again"
rm -rf "$MOUNT/tree" "$MOUNT/links"
is_empty "$MOUNT" || fail "the tree is not gone"
stop_server
ok "a tree of $(tar -tf "$SCRATCH/tree.tar" | wc -l) names is what was copied, and goes again"

: >"$LEDGER"
ACKNOWLEDGED=0
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
    one_round
done
[[ $ACKNOWLEDGED -ge $ROUNDS ]] || fail "the writers acknowledged next to nothing"
ok "$ROUNDS rounds of kill -9 under a mount, all $ACKNOWLEDGED acknowledged files intact"
