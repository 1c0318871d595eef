#!/usr/bin/env bash
#
# What the guest does once guest-init.sh has given it the host's files. Its orders are in
# share/orders: shell variables TASK and whatever that task reads. What it has to tell goes into
# files beside them, so the host knows it even if the machine dies the next moment.

set -euo pipefail

SHARE=/run/share
MOUNT=/run/mount
# shellcheck source=/dev/null
source "$SHARE/orders"

say() { printf '%s\n' "$*"; }
fail() {
    printf 'FAILED in the guest: %s\n' "$*"
    exit 1
}

load() {
    local module
    for module in "$@"; do
        modprobe -C /dev/null -d "$KERNEL_FILES" "$module" || fail "no module $module"
    done
}

network() {
    load virtio_net
    busybox ip link set lo up
    busybox ip link set eth0 up
    busybox ip address add 10.0.2.15/24 dev eth0
}

appears() {
    local wait
    for ((wait = 0; wait < 200; wait++)); do
        [[ ! -e $1 ]] || return 0
        sleep 0.05
    done
    fail "$1 does not appear"
}

# tell NAME: the file share/NAME holds standard input, all of it from the moment that it exists.
tell() {
    cat >"$SHARE/$1.part"
    mv "$SHARE/$1.part" "$SHARE/$1"
}

# --- a pool in the guest ----------------------------------------------------------------------

# make_namespace MODE: on the first boot; later ones find what it wrote to the medium.
make_namespace() {
    load nfit nd_pmem
    appears /sys/bus/nd/devices/namespace0.0
    [[ $FRESH != yes ]] || ndctl create-namespace -f -e namespace0.0 -m "$1" -M mem >/dev/null ||
        fail "ndctl cannot make a namespace"
}

# mount_device DEVICE OPTIONS: ext4 on the device, with the pool in a file on it.
mount_device() {
    POOL=$MOUNT/pool
    load ext4
    appears "$1"
    if [[ $FRESH == yes ]]; then
        mkfs.ext4 -q -b 4096 "$1" || fail "mkfs.ext4 failed"
    else
        # The mount replays the journal; what it leaves must be whole.
        mount -o "$2" "$1" "$MOUNT" || fail "ext4 cannot be mounted after the kill"
        umount "$MOUNT"
        e2fsck -fn "$1" || fail "ext4 is not clean after the kill"
    fi
    # A journal that commits late makes sure that nothing is durable by mere luck.
    mount -o "$2,commit=300" "$1" "$MOUNT"
}

find_medium() {
    case $MEDIUM in
    dax | eadr)
        make_namespace fsdax
        mount_device /dev/pmem0 dax=always
        ;;
    devdax)
        load device_dax dax_pmem
        make_namespace devdax
        POOL=/dev/dax0.0
        appears "$POOL"
        ;;
    file)
        load virtio_blk
        mount_device /dev/vda defaults
        ;;
    *) fail "there is no medium $MEDIUM" ;;
    esac
}

# make_or_check_pool KIND: a pool with a volume of that kind, or what a kill left of it.
make_or_check_pool() {
    local status size=()
    if [[ $FRESH == yes ]]; then
        [[ $MEDIUM == devdax ]] || size=(--size "$POOL_SIZE")
        "$EVERBYTE" pool create "$POOL" "${size[@]}"
        "$EVERBYTE" volume create "$POOL" vol --kind "$1" --size "$VOLUME_SIZE"
    else
        # Looks at the pool as the kill left it, recovered in a private copy.
        status=0
        "$EVERBYTE" pool check "$POOL" || status=$?
        tell check <<<"$status"
    fi
}

# wait_for_server PROCESS: until it serves what it was started for; then tells what the pool says it
# survives, and how it is mapped.
wait_for_server() {
    local server=$1
    until grep -q '^ready: ' "$SHARE/server.out"; do
        kill -0 "$server" 2>/dev/null || fail "the server ended: $(tail -n 5 "$SHARE/server.log")"
        sleep 0.05
    done
    "$EVERBYTE" pool info "$POOL" --json | tell info.json
    # The kernel's own word on the mapping: "sf" is MAP_SYNC.
    awk -v pool="$POOL" '/^[0-9a-f]+-/ { ours = ($6 == pool) } ours && /^VmFlags:/' \
        "/proc/$server/smaps" | tell mapping
}

serve_pool() {
    local everbyte=("$EVERBYTE") server
    network
    find_medium
    make_or_check_pool block
    if [[ $DEAF == yes ]]; then
        everbyte=(/usr/bin/python3 "$TESTS/deaf.py" "$EVERBYTE")
    fi
    "${everbyte[@]}" serve "$POOL" --nbd tcp:0.0.0.0:10809 >"$SHARE/server.out" \
        2>"$SHARE/server.log" &
    server=$!
    wait_for_server "$server"
    tell ready <"$SHARE/server.out"
    wait "$server"
}

# Work of which nobody asks what becomes of it.
change_files_forever() {
    local round
    for ((round = 0; ; round++)); do
        head -c 100000 /dev/urandom >"$1/part"
        mv "$1/part" "$1/$((round % 9))"
        ln -f "$1/$((round % 9))" "$1/link"
        truncate -s $((round % 50 * 1000)) "$1/$(((round + 4) % 9))"
    done
}

# Holds a mount of the pool's file system to the ledger of the machine that was killed, then writes
# until this one is.
write_to_mount_until_killed() {
    local files=/run/files server
    find_medium
    load fuse
    make_or_check_pool fs
    mkdir "$files"
    # Only an fsync makes anything durable soon.
    "$EVERBYTE" mount "$POOL/vol" "$files" --checkpoint-interval 600s >"$SHARE/server.out" \
        2>"$SHARE/server.log" &
    server=$!
    wait_for_server "$server"
    /usr/bin/python3 "$E2E/fsync_writer.py" verify "$files" "$SHARE/ledger" >/run/verified ||
        fail "the mount lost what fsync had acknowledged"
    tell verified </run/verified
    mkdir -p "$files/load"
    change_files_forever "$files/load" &
    : | tell ready
    /usr/bin/python3 "$E2E/fsync_writer.py" write "$files" "$SHARE/ledger"
    fail "the writer ended"
}

# --- the kernel's NBD client ------------------------------------------------------------------

# attach_nbd OPTION...: the volume as /dev/nbd0.
attach_nbd() {
    nbd-client 10.0.2.2 "$NBD_PORT" /dev/nbd0 -name "$NBD_VOLUME" -block-size 4096 "$@" ||
        fail "nbd-client cannot connect"
    [[ $(blockdev --getsize64 /dev/nbd0) -gt 0 ]] || fail "the device has no size"
}

detach_nbd() {
    nbd-client -d /dev/nbd0 || fail "nbd-client cannot disconnect"
}

manifest() {
    (cd "$MOUNT" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 -r sha256sum)
}

# A file system's life: made, filled, and found again by another mount, on another connection.
try_file_system() {
    network
    load nbd "$FS_MODULE"
    attach_nbd
    case $FS_MODULE in
    ext4) mkfs.ext4 -q /dev/nbd0 ;;
    ntfs3) mkfs.ntfs -q -Q -F /dev/nbd0 ;;
    esac || fail "mkfs failed"
    mount -t "$FS_MODULE" /dev/nbd0 "$MOUNT" || fail "cannot mount $FS_MODULE"
    /usr/bin/python3 "$E2E/fill_tree.py" "$MOUNT" 5 "$SMALL_FILES" "$LARGE_MIB"
    manifest >/run/before
    [[ $(wc -l </run/before) -gt $((SMALL_FILES / 2)) ]] || fail "the file system was not filled"
    umount "$MOUNT"
    detach_nbd
    echo 3 >/proc/sys/vm/drop_caches

    attach_nbd
    case $FS_MODULE in
    ext4) e2fsck -fn /dev/nbd0 ;;
    ntfs3) ntfsfix -n /dev/nbd0 ;;
    esac || fail "$FS_MODULE is not clean"
    mount -t "$FS_MODULE" /dev/nbd0 "$MOUNT" || fail "cannot mount $FS_MODULE again"
    manifest >/run/after
    cmp /run/before /run/after || fail "$FS_MODULE lost or changed files"
    umount "$MOUNT"
    detach_nbd
    wc -l </run/after | tell files
}

# --- a disk of the server, by vhost-user-blk ---------------------------------------------------

# vhost_disk: the server's disk as /dev/vda, with its properties as the server was told.
vhost_disk() {
    load virtio_blk
    appears /dev/vda
    local disk=/sys/block/vda
    [[ $(<$disk/queue/write_cache) == "$CACHE" ]] || fail "the cache is $(<$disk/queue/write_cache)"
    # Only the server can allow a volatile cache.
    if [[ $CACHE == "write through" ]]; then
        echo "write back" >$disk/cache_type || true
        [[ $(<$disk/queue/write_cache) == "$CACHE" ]] || fail "the guest has switched its cache on"
    fi
    [[ $(find $disk/mq -maxdepth 1 -name '[0-9]*' | wc -l) == 2 ]] || fail "it has not two queues"
    [[ $(<$disk/serial) == "$VOLUME" ]] || fail "the serial number is $(<$disk/serial)"
}

# A file system's life on the server's disk: made, filled, found again, trimmed and grown.
try_vhost() {
    local sectors wait
    vhost_disk
    load "$FS_MODULE"
    case $FS_MODULE in
    ext4) mkfs.ext4 -q /dev/vda ;;
    xfs) mkfs.xfs -q /dev/vda ;;
    ntfs3) mkfs.ntfs -q -Q -F /dev/vda ;;
    esac || fail "mkfs failed"
    mount -t "$FS_MODULE" -o discard /dev/vda "$MOUNT" || fail "cannot mount $FS_MODULE"
    /usr/bin/python3 "$E2E/fill_tree.py" "$MOUNT" 5 "$SMALL_FILES" "$LARGE_MIB"
    manifest >/run/before
    rm -r "${MOUNT:?}"/* && fstrim "$MOUNT" || fail "the trim failed"
    /usr/bin/python3 "$E2E/fill_tree.py" "$MOUNT" 5 "$SMALL_FILES" "$LARGE_MIB"
    umount "$MOUNT"
    echo 3 >/proc/sys/vm/drop_caches
    mount -t "$FS_MODULE" -o discard /dev/vda "$MOUNT" || fail "cannot mount $FS_MODULE again"
    manifest >/run/after
    cmp /run/before /run/after || fail "$FS_MODULE lost or changed files"
    sectors=$(</sys/block/vda/size)
    : | tell ready
    # The server grows the volume now, and the guest gets a notice.
    for ((wait = 0; wait < 400; wait++)); do
        [[ $(</sys/block/vda/size) == "$sectors" ]] || break
        sleep 0.05
    done
    [[ $(</sys/block/vda/size) -gt $sectors ]] || fail "the disk has not grown"
    case $FS_MODULE in
    ext4) resize2fs /dev/vda ;;
    xfs) xfs_growfs "$MOUNT" ;;
    esac || fail "$FS_MODULE has not grown"
    umount "$MOUNT"
    wc -l </run/after | tell files
}

# Writes files while the host kills the server again and again. No request may fail, and
# all that fsync acknowledged must be found.
write_while_server_dies() {
    local writer
    vhost_disk
    load ext4
    mkfs.ext4 -q /dev/vda || fail "mkfs failed"
    # A request that fails makes the file system read-only, and the writer fail.
    mount -o errors=remount-ro /dev/vda "$MOUNT" || fail "cannot mount"
    /usr/bin/python3 "$E2E/fsync_writer.py" write "$MOUNT" "$SHARE/ledger" &
    writer=$!
    : | tell ready
    until [[ -e $SHARE/enough ]]; do
        kill -0 "$writer" || fail "the writer ended"
        sleep 0.2
    done
    kill "$writer"
    wait "$writer" || true
    umount "$MOUNT"
    echo 3 >/proc/sys/vm/drop_caches
    e2fsck -fn /dev/vda || fail "ext4 is not clean"
    mount /dev/vda "$MOUNT" || fail "cannot mount again"
    /usr/bin/python3 "$E2E/fsync_writer.py" verify "$MOUNT" "$SHARE/ledger" >/run/verified ||
        fail "ext4 lost what fsync had acknowledged"
    ! dmesg | grep -i "i/o error" || fail "a request failed"
    umount "$MOUNT"
    tell verified </run/verified
}

# Uses more memory than there is, and finds all of it again; with PASSES=0 until the machine is killed.
swap_over_nbd() {
    # Where a task is that waits too long goes to the console, not only that it waits.
    busybox dmesg -n 7
    # As docs/swap.md tells whoever swaps over a network: without it the guest's network card finds no memory
    # for what it receives, and so never hears that pages have gone out.
    echo 16384 >/proc/sys/vm/min_free_kbytes
    network
    load nbd
    attach_nbd -swap
    mkswap /dev/nbd0 >/dev/null || fail "mkswap failed"
    swapon /dev/nbd0 || fail "swapon failed"
    : | tell ready
    /usr/bin/python3 "$TESTS/fill_memory.py" "$MEMORY_MIB" "$PASSES" "$SHARE/swapping" >/run/filled ||
        fail "memory was lost"
    swapoff /dev/nbd0 || fail "swapoff failed"
    detach_nbd
    tell filled </run/filled
}

# Holds ext4 to the ledger of the machine that was killed, then writes until this one is.
write_until_killed() {
    network
    load nbd ext4
    attach_nbd
    if [[ $FRESH == yes ]]; then
        mkfs.ext4 -q /dev/nbd0 || fail "mkfs failed"
    fi
    mount /dev/nbd0 "$MOUNT" || fail "ext4 cannot be mounted after the kill"
    /usr/bin/python3 "$E2E/fsync_writer.py" verify "$MOUNT" "$SHARE/ledger" >/run/verified ||
        fail "ext4 lost what fsync had acknowledged"
    umount "$MOUNT"
    e2fsck -fn /dev/nbd0 || fail "ext4 is not clean after the kill"
    tell verified </run/verified
    mount /dev/nbd0 "$MOUNT"
    # With `nobarrier` ext4 sends no FLUSH, and fsync promises what nobody keeps.
    [[ $BARRIER == yes ]] || mount -o remount,nobarrier "$MOUNT" || fail "cannot be careless"
    : | tell ready
    /usr/bin/python3 "$E2E/fsync_writer.py" write "$MOUNT" "$SHARE/ledger"
    fail "the writer ended"
}

# --- stacks of devices ------------------------------------------------------------------------

# cache NAME DEVICE: makes a cache of the device, and says what the command says.
cache() {
    "$EVERBYTE" volume create /run/pool "$1" --kind cache --scm 1M --dram 256K --backing "$2" 2>&1
}

# accepted DEVICE: a cache of the device can be made, and is deleted again.
accepted() {
    local said
    said=$(cache b "$1") || fail "$1 is refused: $said"
    "$EVERBYTE" volume delete /run/pool b >/dev/null
}

# refused DEVICE [WORDS]: a second cache of the device is refused because of the first one, or in these words.
refused() {
    local said
    ! said=$(cache b "$1") || fail "$1 is accepted beside ${FIRST:-nothing}"
    [[ $said == *"${2:-is the backing device of cache a}"* ]] || fail "$1 is refused as: $said"
}

# protected DEVICE: a cache of the device is made, and is read-only.
protected() {
    local said
    said=$(cache b "$1") || fail "$1 is refused: $said"
    [[ $said == *"is read-only: "*"write-protected"* ]] || fail "$1 is writable: $said"
    "$EVERBYTE" volume delete /run/pool b >/dev/null
}

# first DEVICE: the device is that of the one cache that there is.
first() {
    [[ -z ${FIRST:-} ]] || "$EVERBYTE" volume delete /run/pool a >/dev/null
    FIRST=$1
    cache a "$1" >/dev/null || fail "no cache of $1"
}

# mapped NAME DEVICE SECTORS [OPTION...]: a linear device-mapper device over the first sectors.
mapped() {
    dmsetup create --noudevsync "$1" "${@:4}" --table "0 $3 linear $2 0" || fail "no device $1"
    dmsetup mknodes "$1" || fail "no node of $1"
}

# partitions FILE: two partitions of 8 MiB each, in a table that the kernel reads.
partitions() {
    /usr/bin/python3 - "$1" <<'END'
import struct, sys
table = bytearray(512)
for nth, start in enumerate((2048, 18432)):
    struct.pack_into("<B3xB3xII", table, 446 + 16 * nth, 0, 0x83, start, 16384)
table[510:] = b"\x55\xaa"
with open(sys.argv[1], "r+b") as disk:
    disk.write(table)
END
}

# Caches of devices that lie on each other, and of write-protected ones.
try_device_stacks() {
    local part=/dev/vda1 group
    load virtio_blk loop dm_mod
    appears /dev/vdb
    "$EVERBYTE" pool create /run/pool --size 32M >/dev/null || fail "no pool"
    partitions /dev/vda
    blockdev --rereadpt /dev/vda || fail "the partitions are not read"
    appears /dev/vda2

    first "$part"
    refused /dev/vda
    refused "$part"
    accepted /dev/vda2
    mapped over_part "$part" 16384
    mapped twice /dev/mapper/over_part 16384
    refused /dev/mapper/twice
    dmsetup remove twice
    dmsetup remove over_part
    first /dev/vda2
    mapped over_part "$part" 16384
    accepted /dev/mapper/over_part
    dmsetup remove over_part
    mapped over_disk /dev/vda 65536
    refused /dev/mapper/over_disk
    dmsetup remove over_disk
    tell partitions <<<"ok"

    group=LVM-$(printf 'g%.0s' {1..32})
    mapped one /dev/vda 16384 --uuid "$group$(printf 'a%.0s' {1..32})"
    mapped two /dev/vda 16384 --uuid "$group$(printf 'b%.0s' {1..32})"
    first /dev/mapper/one
    accepted /dev/mapper/two
    mapped three /dev/vda 16384
    refused /dev/mapper/three
    dmsetup remove three
    dmsetup remove two

    truncate -s 32M /run/image
    partitions /run/image
    losetup -P /dev/loop0 /run/image || fail "no loop device"
    appears /dev/loop0p2
    first /run/image
    dmsetup remove one
    refused /dev/loop0p1
    first /dev/loop0p1
    refused /run/image
    refused /dev/loop0
    accepted /dev/loop0p2
    tell volumes <<<"ok"

    # The second disk is write-protected by the machine.
    protected /dev/vdb
    mapped writable /dev/vda2 16384
    blockdev --setro /dev/vda2
    protected /dev/mapper/writable
    blockdev --setrw /dev/vda2
    accepted /dev/mapper/writable
    dmsetup remove writable
    blockdev --setro /dev/vda2
    protected /dev/vda2
    blockdev --setrw /dev/vda2
    mapped locked /dev/vda2 16384 --readonly
    protected /dev/mapper/locked
    dmsetup remove locked
    tell protected <<<"ok"
}

"$TASK"
