#!/usr/bin/env bash
#
# Suites that are in no package, on a mount, as far as their places are given. Needs root.
#
# usage: given-suites.sh, with any of
#   PJDFSTEST_C=DIR  the built pjdfstest in C (its directory has pjdfstest and tests/)
#   XFSTESTS=DIR     the built xfstests, with the users it wants; also runs its fsstress. Its _fs_type in common/rc must
#                    report fuse.everbyte as fuse, as it does for glusterfs: sed -e 's/fuse.everbyte/fuse/'
#   GROWFILES=FILE   LTP's growfiles
#   SECONDS_MAX=N    for fsstress and growfiles each, 60 unless set
#
# XFSTESTS_ONLY replaces "-g quick" in the arguments of xfstests, for example "generic/294 generic/306". XFSTESTS_LOG names a
# file that keeps its output.

source "$(dirname "$0")/lib.sh"
need fusermount3 umount prove unshare

[[ $EUID -eq 0 ]] || fail "these suites must be run as root"
[[ -n ${PJDFSTEST_C:-}${XFSTESTS:-}${GROWFILES:-} ]] || fail "none of PJDFSTEST_C, XFSTESTS, GROWFILES is set"
SECONDS_MAX=${SECONDS_MAX:-60}

# Tests of xfstests that cannot pass, one "NUMBER REASON" a line.
read -r -d '' EXCLUDED <<'END' || true
020 attributes of a file share one block, as on ext4; the test expects that only of file systems it knows
424 statx reports no flags of files: the kernel's FUSE has no field for them (everbyte-fuse, tests/limits.rs)
732 mounts one device twice: a file system of a pool has one mount
END

# fsstress fills a small file system, and mapped stores without space end the server with status 1.
new_files 4096
mount_files --allow-other

if [[ -n ${PJDFSTEST_C:-} ]]; then
    mkdir "$MOUNT/pjdfstest"
    (cd "$MOUNT/pjdfstest" && prove -r "$PJDFSTEST_C/tests") >"$SCRATCH/pjdfstest.log" 2>&1 || {
        grep -E 'Failed|Wstat' "$SCRATCH/pjdfstest.log" | head -n 40 >&2
        fail "pjdfstest in C"
    }
    rm -rf "$MOUNT/pjdfstest"
    ok "pjdfstest in C: $(tail -n 2 "$SCRATCH/pjdfstest.log" | head -n 1)"
fi

if [[ -n ${XFSTESTS:-} ]]; then
    mkdir "$MOUNT/fsstress"
    timeout --preserve-status "$SECONDS_MAX" "$XFSTESTS/ltp/fsstress" -d "$MOUNT/fsstress" \
        -n 100000000 -p 4 -s "$RANDOM" >"$SCRATCH/fsstress.log" 2>&1 || [[ $? -eq 143 ]] ||
        fail "fsstress: $(tail -n 3 "$SCRATCH/fsstress.log")"
    rm -rf "$MOUNT/fsstress"
    "$EVERBYTE" pool check "$POOL" >/dev/null || fail "fsstress left a pool that is not sound"
    ok "fsstress for $SECONDS_MAX s"
fi

if [[ -n ${GROWFILES:-} ]]; then
    mkdir "$MOUNT/growfiles"
    "$GROWFILES" -W growfiles -b -e 1 -u -r 1-49600 -I r -T "$SECONDS_MAX" -f Lgf -S 4 \
        -d "$MOUNT/growfiles" >"$SCRATCH/growfiles.log" 2>&1 ||
        fail "growfiles: $(tail -n 5 "$SCRATCH/growfiles.log")"
    rm -rf "$MOUNT/growfiles"
    ok "growfiles for $SECONDS_MAX s"
fi
end_files

# xfstests mounts by "mount -t fuse.everbyte", and mount(8) looks for helpers in /sbin.
install_mount_helper() {
    local helper=/sbin/mount.fuse.everbyte
    [[ ! -e $helper ]] || fail "$helper exists already"
    on_exit rm -f "$helper"
    ln -s "$(realpath "$EVERBYTE")" "$helper"
}

# end_mounts: ends the servers that the helper started: they are no children of this shell, and their mounts are in a
# namespace of their own.
end_mounts() {
    local entry
    for entry in /proc/[0-9]*; do
        if tr '\0' ' ' 2>/dev/null <"$entry/cmdline" | grep -qF " $SCRATCH/"; then
            kill -9 "${entry#/proc/}"
        fi
    done
}

run_xfstests() {
    local device wanted=(-g quick)
    [[ -z ${XFSTESTS_ONLY:-} ]] || read -ra wanted <<<"$XFSTESTS_ONLY"
    install_mount_helper
    on_exit end_mounts
    for device in test scratch; do
        "$EVERBYTE" pool create "$FAST/$device.pool" --size 1344M >/dev/null
        "$EVERBYTE" volume create "$FAST/$device.pool" v --kind fs --size 1280M >/dev/null
        mkdir "$SCRATCH/$device"
        on_exit unmount "$SCRATCH/$device"
    done
    cat >"$SCRATCH/local.config" <<END
export FSTYP=fuse FUSE_SUBTYP=.everbyte
export MOUNT_OPTIONS="-o allow_other" TEST_FS_MOUNT_OPTS="-o allow_other"
export TEST_DEV=everbyte:$FAST/test.pool/v TEST_DIR=$SCRATCH/test
export SCRATCH_DEV=everbyte:$FAST/scratch.pool/v SCRATCH_MNT=$SCRATCH/scratch
END
    sed 's|^\([0-9]*\) .*|generic/\1|' <<<"$EXCLUDED" >"$SCRATCH/excluded"
    (cd "$XFSTESTS" && HOST_OPTIONS=$SCRATCH/local.config unshare -m \
        ./check -E "$SCRATCH/excluded" "${wanted[@]}") >"$SCRATCH/xfstests.log" 2>&1 || true
    [[ -z ${XFSTESTS_LOG:-} ]] || cp "$SCRATCH/xfstests.log" "$XFSTESTS_LOG"
    grep -q '^Passed all' "$SCRATCH/xfstests.log" || {
        tail -n 5 "$SCRATCH/xfstests.log" >&2
        fail "xfstests"
    }
    ok "xfstests: $(grep '^Passed all' "$SCRATCH/xfstests.log"), $(wc -l <"$SCRATCH/excluded") excluded"
}

[[ -z ${XFSTESTS:-} ]] || run_xfstests
