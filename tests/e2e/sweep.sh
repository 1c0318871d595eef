#!/usr/bin/env bash
#
# Gives back whatever a run left behind: processes, mounts, loop devices and files whose names
# carry the run's mark. Each script cleans up after itself; this is for those that were killed.
#
# usage: sweep.sh RUN

set -u
PATH=$PATH:/usr/sbin:/sbin
MARK=everbyte-e2e.${1:?usage: sweep.sh RUN}.

root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

for entry in /proc/[0-9]*; do
    if [[ ${entry#/proc/} != "$$" ]] && tr '\0' ' ' 2>/dev/null <"$entry/cmdline" | grep -qF "$MARK"; then
        root kill -9 "${entry#/proc/}" 2>/dev/null
    fi
done
# File systems first, then the loop devices below them, then what those lie on.
marked_mounts() { grep -F " ${TMPDIR:-/tmp}/$MARK" /proc/mounts | tac; }

while read -r source where _; do
    [[ $source == /dev/fuse ]] || root umount "$where" 2>/dev/null || root umount -l "$where"
done < <(marked_mounts)
for backing in /sys/block/loop*/loop/backing_file; do
    if grep -qsF "$MARK" "$backing"; then
        device=${backing#/sys/block/}
        root losetup -d "/dev/${device%%/*}"
    fi
done
while read -r _ where _; do
    root umount -l "$where"
done < <(marked_mounts)
# Tests in Rust that were killed leave mounts that nobody serves; those of tests that run are served.
while read -r source where _; do
    if [[ $source == test/files ]] && ! root stat "$where" >/dev/null 2>&1; then
        root umount -l "$where" && root rmdir "$where"
    fi
done </proc/mounts
root rm -rf "${TMPDIR:-/tmp}/$MARK"* "/dev/shm/$MARK"*
