#!/usr/bin/env bash
#
# kill -9 under caches, whose storage is in rotation a file, an export of nbdkit and one of
# qemu-nbd. On each cache lies an ext4 with a writer that notes what fsync acknowledged; on another
# cache fio writes a region, and writes beside it while the server is killed. After every kill the
# file system must hold every acknowledged file and be clean, and fio must find its region. In the
# end the caches are detached, and the same must be true of the backing device alone.
#
# usage: crash-cache.sh ROUNDS

source "$(dirname "$0")/lib.sh"
need nbdkit qemu-nbd fio nbdfuse losetup fusermount3 mkfs.ext4 e2fsck "$PYTHON"

ROUNDS=${1:?usage: crash-cache.sh ROUNDS}
KINDS=(file nbdkit qemu)
POOL=$FAST/caches.pool
MOUNT=$SCRATCH/mount
mkdir "$MOUNT"

# storage_of KIND: sets STORAGE, starting the server that it needs.
storage_of() {
    local image=$SCRATCH/$1.img socket=$SCRATCH/$1.socket
    truncate -s 192M "$image"
    STORAGE="nbd+unix:///?socket=$socket"
    case $1 in
    file)
        STORAGE=$image
        return
        ;;
    nbdkit) nbdkit --foreground --unix "$socket" file "$image" 2>"$SCRATCH/nbdkit.log" & ;;
    qemu)
        STORAGE="nbd+unix:///disk?socket=$socket"
        qemu-nbd --persistent --shared=4 --format=raw --cache=writeback --discard=unmap \
            --export-name=disk --socket="$socket" "$image" 2>"$SCRATCH/qemu-nbd.log" &
        ;;
    esac
    STORAGE_PID=$!
    on_exit end_process "$STORAGE_PID"
    within 20 test -S "$socket" || fail "$1 did not come up"
}

mount_here() {
    on_exit unmount "$SCRATCH/mount"
    MOUNT=$SCRATCH/mount
    root mount -t ext4 "$LOOP" "$MOUNT" || fail "ext4 cannot be mounted"
}

# fio_on OFFSET SEED ARGS...: 12 MiB of the export `fio`.
fio_on() {
    local offset=$1 seed=$2
    shift 2
    fio --name=region --ioengine=nbd --uri="nbd+unix:///fio?socket=$SOCKET" --offset="$offset" \
        --size=12M --rw=randwrite --bsrange=512-16k --randseed="$seed" --iodepth=8 \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" >"$SCRATCH/fio.log" 2>&1
}

# checked_files KIND: all acknowledged files are on $MOUNT and intact; prints how many were acknowledged since the last
# time.
checked_files() {
    root "$PYTHON" "$E2E/fsync_writer.py" verify "$MOUNT" "$SCRATCH/$1.ledger" ||
        fail "the ext4 over $1 lost what fsync had acknowledged"
}

one_round() {
    local kind=$1 load checked
    start_server "$POOL" "$kind"
    attach_loop "$URI"
    mount_here
    fio_on 0 "$ROUND" --do_verify=0 --end_fsync=1 || fail "fio: $(tail -n 5 "$SCRATCH/fio.log")"
    fio --name=load --ioengine=nbd --uri="nbd+unix:///fio?socket=$SOCKET" --offset=16M --size=80M \
        --rw=randrw --bsrange=512-64k --time_based --runtime=60 >/dev/null 2>&1 &
    load=$!
    on_exit end_process "$load"
    start_fsync_writer "$MOUNT" "$SCRATCH/$kind.ledger"
    kill_under_fsync_writer "$load"
    end_process "$load" 2>/dev/null || true
    tear_down

    start_server "$POOL" "$kind"
    fio_on 0 "$ROUND" --verify_only || fail "fio finds other bytes: $(tail -n 5 "$SCRATCH/fio.log")"
    attach_loop "$URI"
    mount_here
    checked=$(checked_files "$kind")
    unmount "$MOUNT"
    check_fs ext4 "$LOOP"
    tear_down
    stop_server
    ACKNOWLEDGED=$((ACKNOWLEDGED + checked))
    say "round $ROUND: over $kind: $checked files acknowledged meanwhile, all intact, clean; fio verified"
}

"$EVERBYTE" pool create "$POOL" --size 320M >/dev/null
for kind in "${KINDS[@]}"; do
    storage_of "$kind"
    "$EVERBYTE" volume create "$POOL" "$kind" --kind cache --backing "$STORAGE" --scm 24M \
        --dram 8M >/dev/null || fail "no cache over $kind"
    : >"$SCRATCH/$kind.ledger"
done
truncate -s 96M "$SCRATCH/fio.img"
"$EVERBYTE" volume create "$POOL" fio --kind cache --backing "$SCRATCH/fio.img" --scm 24M >/dev/null
for kind in "${KINDS[@]}"; do
    start_server "$POOL" "$kind"
    attach_loop "$URI"
    make_fs ext4 "$LOOP"
    tear_down
    stop_server
done
ACKNOWLEDGED=0
for ((ROUND = 1; ROUND <= ROUNDS; ROUND++)); do
    one_round "${KINDS[(ROUND - 1) % ${#KINDS[@]}]}"
done
[[ $ACKNOWLEDGED -ge $ROUNDS ]] || fail "the writers acknowledged next to nothing"
"$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not clean"
ok "$ROUNDS rounds of kill -9 over ${KINDS[*]}, all $ACKNOWLEDGED acknowledged files intact"

for kind in "${KINDS[@]}"; do
    "$EVERBYTE" volume detach "$POOL" "$kind" >/dev/null || fail "$kind does not detach"
    LOOP=$(root losetup --find --show "$SCRATCH/$kind.img") || fail "no loop device"
    FILE=$SCRATCH/$kind.img
    on_exit detach_loop "$LOOP" "$FILE"
    mount_here
    checked_files "$kind" >/dev/null
    unmount "$MOUNT"
    check_fs ext4 "$LOOP"
    detach_loop "$LOOP" "$FILE" || fail "$LOOP does not let go"
done
ok "after detaching, the backing device alone of ${KINDS[*]} has every file and is clean"
