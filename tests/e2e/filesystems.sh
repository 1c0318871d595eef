#!/usr/bin/env bash
#
# Real file systems on our export: made, filled, checked, and found again after the server was
# stopped and started. ext4, XFS and btrfs through the kernel, NTFS through ntfs-3g, FAT through
# mtools. Also that discards of a file system give space back to the pool.

source "$(dirname "$0")/lib.sh"
need nbdfuse nbdinfo losetup fusermount3 mkfs.ext4 e2fsck mkfs.xfs xfs_repair mkfs.btrfs btrfs \
    fstrim mkfs.fat fsck.fat mcopy mkfs.ntfs ntfs-3g ntfsfix "$PYTHON"

POOL=$FAST/pool

# case: kernel-fs
# kernel_fs TYPE MOUNT_TYPE SMALL_FILES LARGE_MIB: the whole life of one file system.
kernel_fs() {
    local fs=$1 type=$2 small=$3 large=$4 before after
    start_server "$POOL/$fs" "$fs"
    attach_loop "$URI"
    make_fs "$fs" "$LOOP"
    mount_loop "$type"
    root "$PYTHON" "$E2E/fill_tree.py" "$MOUNT" 1 "$small" "$large"
    manifest "$MOUNT" >"$SCRATCH/$fs.before"
    [[ $(wc -l <"$SCRATCH/$fs.before") -gt $((small / 2)) ]] || fail "$fs was not filled"
    unmount "$MOUNT"
    check_fs "$fs" "$LOOP"
    tear_down
    stop_server
    ok "$fs: made, filled, clean"

    start_server "$POOL/$fs" "$fs"
    attach_loop "$URI"
    check_fs "$fs" "$LOOP"
    mount_loop "$type"
    manifest "$MOUNT" >"$SCRATCH/$fs.after"
    cmp "$SCRATCH/$fs.before" "$SCRATCH/$fs.after" || fail "$fs lost or changed files"
    ok "$fs: every file is there after a restart"

    before=$(data_bytes "$URI")
    root rm -rf "$MOUNT"/large* "$MOUNT"/d1*
    sync -f "$MOUNT"
    if [[ $fs != ntfs ]]; then
        root fstrim "$MOUNT"
        after=$(data_bytes "$URI")
        [[ $after -lt $((before - 2 * large * 1048576)) ]] ||
            fail "$fs: fstrim left $after of $before bytes allocated"
    fi
    manifest "$MOUNT" >"$SCRATCH/$fs.before"
    unmount "$MOUNT"
    check_fs "$fs" "$LOOP"
    mount_loop "$type"
    manifest "$MOUNT" | cmp - "$SCRATCH/$fs.before" || fail "$fs changed after deletions"
    tear_down
    stop_server
    ok "$fs: deleted, trimmed, clean"
}

# case: fat
# fat: no mount at all, an image written by mtools through the nbdfuse file.
fat() {
    local tree=$SCRATCH/tree
    mkdir "$tree"
    "$PYTHON" "$E2E/fill_tree.py" "$tree" 2 200 2
    start_server "$POOL/vfat" vfat
    attach_file "$URI"
    make_fs vfat "$FILE"
    mcopy -i "$FILE" -s "$tree" ::/ || fail "mcopy in failed"
    check_fs vfat "$FILE"
    tear_down
    stop_server
    start_server "$POOL/vfat" vfat
    attach_file "$URI"
    mkdir "$SCRATCH/back"
    mcopy -i "$FILE" -s ::/tree "$SCRATCH/back" || fail "mcopy out failed"
    diff -r "$tree" "$SCRATCH/back/tree" || fail "FAT lost or changed files"
    check_fs vfat "$FILE"
    tear_down
    stop_server
    ok "vfat: written by mtools, clean, the same after a restart"
}

"$EVERBYTE" pool create "$POOL" --size 768M >/dev/null
for fs in ext4 xfs btrfs; do
    "$EVERBYTE" volume create "$POOL" "$fs" --size 512M >/dev/null
    kernel_fs "$fs" "$fs" 3000 16
    "$EVERBYTE" volume delete "$POOL" "$fs" >/dev/null
done
"$EVERBYTE" volume create "$POOL" ntfs --size 256M >/dev/null
kernel_fs ntfs ntfs-3g 1500 8
"$EVERBYTE" volume create "$POOL" vfat --size 128M -o delta=on >/dev/null
fat
"$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not clean"
ok "the pool is clean after five file systems"
