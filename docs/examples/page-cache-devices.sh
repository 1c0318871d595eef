#!/usr/bin/env bash
#
# Mounts two empty ext4 file systems for `cargo xtask publish --suite page-cache`: /mnt/ramdisk on a loop device in
# memory, and /mnt/disk on the same with a delay before each request. Needs root, nbdkit and nbdfuse (libnbd-bin).
# Ctrl-C unmounts and removes both.

set -euo pipefail

size=${1:-2G}
delay_ms=${2:-4}
server=
memory=$(mktemp -d /dev/shm/page-cache.XXXXXX)

finish() {
    umount /mnt/ramdisk /mnt/disk 2>/dev/null || true
    umount "$memory/slow" 2>/dev/null || true
    [[ -z $server ]] || wait "$server" || true
    rm -rf "$memory"
}
trap finish EXIT
trap 'exit 130' INT TERM

mkdir -p /mnt/ramdisk /mnt/disk "$memory/slow"
truncate -s "$size" "$memory/ramdisk"
setsid nbdfuse "$memory/slow" --command nbdkit -s --filter=delay memory "$size" "delay-read=${delay_ms}ms" \
    "delay-write=${delay_ms}ms" &
server=$!
until [[ -e $memory/slow/nbd ]]; do sleep 0.1; done
for device in "$memory/ramdisk:/mnt/ramdisk" "$memory/slow/nbd:/mnt/disk"; do
    mkfs.ext4 -q -m 0 -E lazy_itable_init=0,lazy_journal_init=0 "${device%%:*}"
    mount -o loop "${device%%:*}" "${device##*:}"
    rmdir "${device##*:}/lost+found"
done
echo "mounted: /mnt/ramdisk /mnt/disk; Ctrl-C removes them"
while sleep 1; do :; done
