#!/usr/bin/env bash
#
# What becomes of caches when something happens to their storage. nbdkit and qemu-nbd are killed and
# started again under a load that verifies what it wrote: nobody may notice, and in the end the
# storage alone must have everything. Exports and a block device grow, and their caches follow; what
# is trimmed in a cache is given back by the file under the block device. A file system that refuses
# what is asked of it is made do with. One that is frozen lets go of no thread that writes to it: the
# server ends all the same.
#
# usage: cache-storage.sh KILLS

source "$(dirname "$0")/lib.sh"
need nbdkit qemu-nbd qemu-io fio nbdinfo losetup mkfs.ext4 fsfreeze "$PYTHON"

KILLS=${1:?usage: cache-storage.sh KILLS}
POOL=$FAST/caches.pool
STORAGE_PID=

# serve_storage KIND: serves $SCRATCH/KIND.img and waits until that can be connected to.
serve_storage() {
    local image=$SCRATCH/$1.img socket=$SCRATCH/$1.socket
    case $1 in
    nbdkit) nbdkit --foreground --unix "$socket" file "$image" 2>>"$SCRATCH/nbdkit.log" & ;;
    qemu)
        qemu-nbd --persistent --shared=4 --format=raw --cache=writeback --discard=unmap \
            --export-name=disk --socket="$socket" "$image" 2>>"$SCRATCH/qemu-nbd.log" &
        ;;
    esac
    STORAGE_PID=$!
    on_exit end_process "$STORAGE_PID"
    within 20 test -S "$socket" || fail "$1 did not come up"
}

kill_storage() {
    kill -9 "$STORAGE_PID"
    wait "$STORAGE_PID" 2>/dev/null || true
    rm -f "$SCRATCH/$1.socket"
}

uri_of() {
    case $1 in
    nbdkit) printf 'nbd+unix:///?socket=%s' "$SCRATCH/nbdkit.socket" ;;
    qemu) printf 'nbd+unix:///disk?socket=%s' "$SCRATCH/qemu.socket" ;;
    esac
}

# region ARGS...: 24 MiB of random writes that can be verified, some of them flushed.
region() {
    fio --name=region --size=24M --rw=randwrite --bsrange=2k-32k --randseed=7 --iodepth=4 \
        --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 "$@" \
        >"$SCRATCH/fio.log" 2>&1
}

# case: killed-under-load
# killed_under_load KIND: what a client of the cache must not notice.
killed_under_load() {
    local kind=$1 load killed=0
    truncate -s 64M "$SCRATCH/$kind.img"
    serve_storage "$kind"
    "$EVERBYTE" volume create "$POOL" "$kind" --kind cache --backing "$(uri_of "$kind")" --scm 4M \
        --dram 1M >/dev/null || fail "no cache over $kind"
    start_server "$POOL" "$kind" --reconnect-timeout 2m
    region --ioengine=nbd --uri="$URI" --do_verify=1 --rate_iops=1000 &
    load=$!
    on_exit end_process "$load"
    while [[ $killed -lt $KILLS ]] && ! process_is_gone "$load"; do
        sleep "0.$((RANDOM % 5 + 2))"
        kill_storage "$kind"
        killed=$((killed + 1))
        sleep "0.$((RANDOM % 5 + 1))"
        serve_storage "$kind"
    done
    wait "$load" || fail "fio over $kind: $(tail -n 5 "$SCRATCH/fio.log")"
    [[ $killed -ge 2 ]] || fail "$kind was killed $killed times only: the load was too short"
    grep -q 'connected again' "$SERVER_LOG" || fail "$kind was killed and nobody noticed"
    "$EVERBYTE" volume list "$POOL" --json >"$SCRATCH/list.json"
    stop_server
    "$EVERBYTE" volume detach "$POOL" "$kind" >/dev/null || fail "$kind does not detach"
    region --ioengine=sync --filename="$SCRATCH/$kind.img" --verify_only ||
        fail "the backing device alone has other bytes: $(tail -n 5 "$SCRATCH/fio.log")"
    ok "$kind killed $killed times under load: no error, everything verified, before and after detaching"
}

# case: grown-export
# grown_export KIND
grown_export() {
    local kind=$1
    "$EVERBYTE" volume create "$POOL" "$kind" --kind cache --backing "$(uri_of "$kind")" \
        --scm 4M >/dev/null
    start_server "$POOL" "$kind"
    qemu-io -f raw -c 'write -P 7 63M 1M' "$URI" >/dev/null || fail "no write over $kind"
    kill_storage "$kind"
    truncate -s $((80 * 1024 * 1024 + 512)) "$SCRATCH/$kind.img"
    serve_storage "$kind"
    # The server that is connected refuses the other size, and keeps what it has.
    refused 1 '' qemu-io -f raw -c 'read 1M 4k' "$URI"
    qemu-io -f raw -c 'read -P 7 63M 1M' "$URI" >/dev/null || fail "cached bytes are not served"
    within 20 "$EVERBYTE" volume resize "$POOL" "$kind" --follow-backing ||
        fail "the cache does not follow $kind"
    [[ $(nbdinfo --size "$URI") -eq $((80 * 1024 * 1024 + 512)) ]] || fail "the cache has another size"
    qemu-io -f raw -c 'read -P 7 63M 1M' -c 'write -P 8 80M 512' "$URI" >/dev/null ||
        fail "the cache of the grown export does not serve"
    stop_server
    "$EVERBYTE" volume detach "$POOL" "$kind" >/dev/null
    qemu-io -f raw -c 'read -P 7 63M 1M' -c 'read -P 8 80M 512' "$SCRATCH/$kind.img" >/dev/null ||
        fail "the grown storage has other bytes"
    ok "a cache follows an export of $kind that has grown, and not before it is told to"
}

disk_kib() { du -k "$1" | cut -f1; }

# case: block-device
block_device() {
    local image=$SCRATCH/block.img before after
    truncate -s 64M "$image"
    LOOP=$(root losetup --find --show "$image") || fail "no loop device"
    on_exit detach_loop "$LOOP" "$image"
    "$EVERBYTE" volume create "$POOL" block --kind cache --backing "$LOOP" --scm 4M >/dev/null ||
        fail "no cache over $LOOP"
    start_server "$POOL" block --direct-backing
    region --ioengine=nbd --uri="$URI" --do_verify=1 || fail "fio: $(tail -n 5 "$SCRATCH/fio.log")"
    qemu-io -f raw -c 'write -P 9 48M 16M' -c flush "$URI" >/dev/null
    ! grep -qi 'page cache' "$SERVER_LOG" || fail "a block device refuses O_DIRECT"
    stop_server
    start_server "$POOL" block --direct-backing
    before=$(disk_kib "$image")
    qemu-io -f raw -d unmap -c 'discard 50331649 16777215' -c flush "$URI" >/dev/null ||
        fail "no trim"
    qemu-io -f raw -c 'read -P 9 48M 1' -c 'read -P 0 50331649 16777215' "$URI" >/dev/null ||
        fail "what was trimmed is no zeroes"
    after=$(disk_kib "$image")
    [[ $after -le $((before - 10 * 1024)) ]] || fail "the trim gave no space back"
    stop_server
    truncate -s 72M "$image"
    root losetup --set-capacity "$LOOP"
    refused 1 'follow-backing' "$EVERBYTE" serve "$POOL/block" --nbd "unix:$SOCKET"
    "$EVERBYTE" volume resize "$POOL" block --follow-backing >/dev/null || fail "it does not follow"
    start_server "$POOL" block --direct-backing
    qemu-io -f raw -c 'write -P 5 71M 1M' "$URI" >/dev/null || fail "no write beyond the old end"
    stop_server
    "$EVERBYTE" volume detach "$POOL" block --json >"$SCRATCH/detached.json" || fail "no detach"
    [[ $(json_get 'd["written_bytes"] >= 1 << 20' <"$SCRATCH/detached.json") == True ]] ||
        fail "detaching wrote nothing"
    root sync "$LOOP"
    region --ioengine=sync --filename="$image" --verify_only ||
        fail "the image has other bytes: $(tail -n 5 "$SCRATCH/fio.log")"
    qemu-io -f raw -c 'read -P 5 71M 1M' "$image" >/dev/null || fail "the image lacks the new end"
    detach_loop "$LOOP" "$image" || fail "$LOOP does not let go"
    ok "a block device past the page cache: verified, trims give space back, it grows"
}

# case: refusing-file-system
# A ramfs knows neither O_DIRECT nor holes.
refusing_file_system() {
    local folder=$SCRATCH/ram image=$SCRATCH/ram/disk.img
    mkdir "$folder"
    on_exit unmount "$folder"
    root mount -t ramfs none "$folder" || fail "no ramfs"
    root chmod 777 "$folder"
    truncate -s 16M "$image"
    "$EVERBYTE" volume create "$POOL" ram --kind cache --backing "$image" --scm 4M >/dev/null
    start_server "$POOL" ram --direct-backing
    grep -q 'they go through it' "$SERVER_LOG" || fail "nobody says that it is refused"
    qemu-io -f raw -d unmap -c 'write -P 6 0 12M' -c 'discard 1M 8M' -c flush "$URI" >/dev/null ||
        fail "a cache of a ramfs does not serve"
    stop_server
    "$EVERBYTE" volume detach "$POOL" ram >/dev/null || fail "it does not detach"
    qemu-io -f raw -c 'read -P 6 0 1M' -c 'read -P 0 1M 8M' -c 'read -P 6 9M 3M' "$image" >/dev/null ||
        fail "the file has other bytes"
    unmount "$folder"
    ok "a file system without O_DIRECT and holes is said to be one, and used"
}

# threads_held PID: those that wait in the kernel where not even kill -9 reaches them.
threads_held() { grep -l '^State:.D' "/proc/$1"/task/*/status 2>/dev/null | sort; }

# held_for_good PID: some of them do so twice in a row.
held_for_good() {
    local before
    before=$(threads_held "$1")
    sleep 0.3
    [[ -n $(comm -12 <(printf '%s' "$before") <(threads_held "$1")) ]]
}

thaw() { root fsfreeze --unfreeze "$1"; }

# case: frozen-file-system
# frozen_file_system: writes to it end when it is thawed, and not before.
frozen_file_system() {
    local folder=$SCRATCH/frozen image=$SCRATCH/frozen.img status=0 writer
    mkdir "$folder"
    truncate -s 64M "$image"
    make_fs ext4 "$image"
    on_exit unmount "$folder"
    root mount -o loop "$image" "$folder" || fail "no mount"
    root chmod 777 "$folder"
    truncate -s 8M "$folder/disk"
    "$EVERBYTE" volume create "$POOL" frozen --kind cache --backing "$folder/disk" --scm 64K \
        --dram 64K >/dev/null
    "$EVERBYTE" volume create "$POOL" beside --size 1M >/dev/null
    start_server "$POOL" frozen --checkpoint-interval 10m
    on_exit thaw "$folder"
    root fsfreeze --freeze "$folder" || fail "it cannot be frozen"
    # More than the cache has room for, and nothing is flushed: the last of it is never answered.
    qemu-io -f raw -c 'write -P 7 0 32k' -c 'write -P 8 1M 4M' "$URI" >"$SCRATCH/frozen.log" 2>&1 &
    writer=$!
    on_exit end_process "$writer"
    within 20 held_for_good "$SERVER_PID" || fail "no thread waits for the frozen file system"
    qemu-io -f raw -c 'write -P 9 0 1M' -c flush "$(ready_uri beside)" >/dev/null ||
        fail "a volume beside it does not serve"
    kill -TERM "$SERVER_PID"
    within 10 process_is_gone "$SERVER_PID" || fail "the server did not end within 10 s of SIGTERM"
    [[ -n $(threads_held "$SERVER_PID") ]] || fail "the kernel has let go: this proves nothing"
    grep -q 'cache frozen has not answered.*ends without its answer' "$SERVER_LOG" ||
        fail "nobody says what the server did not wait for"
    grep -q 'the pool is closed' "$SERVER_LOG" || fail "the pool is not closed"
    wait "$writer" || true
    thaw "$folder"
    wait "$SERVER_PID" || status=$?
    [[ $status -eq 0 ]] || fail "the server ended with status $status"
    [[ $("$EVERBYTE" pool info "$POOL" --json | json_get 'd["clean"]') == True ]] ||
        fail "the pool is not clean"
    start_server "$POOL" frozen
    qemu-io -f raw -c 'read -P 7 0 32k' "$URI" >/dev/null || fail "what was answered is lost"
    qemu-io -f raw -c 'read -P 9 0 1M' "$(ready_uri beside)" >/dev/null || fail "beside has other bytes"
    stop_server
    "$EVERBYTE" volume detach "$POOL" frozen >/dev/null || fail "it does not detach"
    qemu-io -f raw -c 'read -P 7 0 32k' "$folder/disk" >/dev/null || fail "the file has other bytes"
    unmount "$folder"
    ok "a thread that the kernel does not let go keeps no server from a clean end within 10 s"
}

"$EVERBYTE" pool create "$POOL" --size 128M >/dev/null
for kind in nbdkit qemu; do
    killed_under_load "$kind"
    grown_export "$kind"
    kill_storage "$kind"
done
block_device
refusing_file_system
frozen_file_system
"$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not clean"
ok "the pool is clean"
