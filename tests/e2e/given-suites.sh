#!/usr/bin/env bash
#
# Suites that are in no package, on a mount, as far as their places are given. Needs root.
#
# usage: given-suites.sh, with any of
#   PJDFSTEST_C=DIR  the built pjdfstest in C (its directory has pjdfstest and tests/)
#   XFSTESTS=DIR     the built xfstests, with the users it wants; also runs its fsstress
#   GROWFILES=FILE   LTP's growfiles
#   SECONDS_MAX=N    for fsstress and growfiles each, 60 unless set
#
# XFSTESTS_GROUP is the group of xfstests, "quick" unless set.

source "$(dirname "$0")/lib.sh"
need fusermount3 umount prove unshare

[[ $EUID -eq 0 ]] || fail "these suites must be run as root"
[[ -n ${PJDFSTEST_C:-}${XFSTESTS:-}${GROWFILES:-} ]] || fail "none of PJDFSTEST_C, XFSTESTS, GROWFILES is set"
SECONDS_MAX=${SECONDS_MAX:-60}

# Tests of xfstests that cannot pass, one "NUMBER REASON" a line.
read -r -d '' EXCLUDED <<'END' || true
020 attributes of a file share one block, as on ext4; the test expects that only of file systems it knows
128 mounts with nosuid, for which this mount has no option
258 times before 1970 are 1970
294 remounts read-only, which FUSE has no request for
306 remounts read-only
426 opens by handle after the inode left the kernel's cache: fuser has no lookup of "." and ".."
467 as 426
477 as 426
683 the kernel's FUSE keeps set-group-id on a file that its group cannot execute
684 as 683
685 as 683
732 mounts one device twice: a file system of a pool has one mount
756 as 426
777 as 426
END

new_files 1280
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

# xfstests mounts and unmounts by "mount -t fuse.everbyte", so it needs a helper where mount looks for one.
# Its devices are what the list of mounts shows, with paths relative to a directory that it is not in.
install_mount_helper() {
    local helper=/sbin/mount.fuse.everbyte
    [[ ! -e $helper ]] || fail "$helper is there already"
    on_exit rm -f "$helper"
    cat >"$helper" <<END
#!/bin/bash
cd "$1" || exit 32
read_only=()
[[ ,\$4, != *,ro,* ]] || read_only=(--read-only)
said=\$(mktemp)
# The server before may still be closing the pool.
for _ in {1..20}; do
    setsid "$EVERBYTE" mount "\${1#everbyte:}" "\$2" --allow-other "\${read_only[@]}" >"\$said" 2>>"$1/mount.log" </dev/null &
    while kill -0 \$! 2>/dev/null; do
        if grep -q '^ready: ' "\$said"; then rm "\$said"; exit 0; fi
        sleep 0.05
    done
    sleep 0.3
done
exit 32
END
    chmod 755 "$helper"
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
    local device
    install_mount_helper "$FAST"
    on_exit end_mounts
    for device in test scratch; do
        "$EVERBYTE" pool create "$FAST/$device.pool" --size 1344M >/dev/null
        "$EVERBYTE" volume create "$FAST/$device.pool" v --kind fs --size 1280M >/dev/null
        mkdir "$SCRATCH/$device"
        on_exit unmount "$SCRATCH/$device"
    done
    cat >"$SCRATCH/local.config" <<END
export FSTYP=fuse FUSE_SUBTYP=.everbyte
export TEST_DEV=everbyte:test.pool/v TEST_DIR=$SCRATCH/test
export SCRATCH_DEV=everbyte:scratch.pool/v SCRATCH_MNT=$SCRATCH/scratch
END
    sed 's|^\([0-9]*\) .*|generic/\1|' <<<"$EXCLUDED" >"$SCRATCH/excluded"
    (cd "$XFSTESTS" && HOST_OPTIONS=$SCRATCH/local.config unshare -m \
        ./check -g "${XFSTESTS_GROUP:-quick}" -E "$SCRATCH/excluded") >"$SCRATCH/xfstests.log" 2>&1 || true
    grep -q '^Passed all' "$SCRATCH/xfstests.log" || {
        tail -n 5 "$SCRATCH/xfstests.log" >&2
        fail "xfstests"
    }
    ok "xfstests: $(grep '^Passed all' "$SCRATCH/xfstests.log"), $(wc -l <"$SCRATCH/excluded") excluded"
}

[[ -z ${XFSTESTS:-} ]] || run_xfstests
