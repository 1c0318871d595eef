#!/usr/bin/env bash
#
# The same random system calls on ext4 and on a mount: what they answer and leave must be the same, error
# number for error number; see differential.py for what is not compared. Then the bits and capabilities that
# changes take from files, by privileges.py.
#
# usage: differential.sh SEEDS CALLS

source "$(dirname "$0")/lib.sh"
need fusermount3 umount mkfs.ext4 "$PYTHON"

SEEDS=${1:?usage: differential.sh SEEDS CALLS}
CALLS=${2:?usage: differential.sh SEEDS CALLS}
FILE=$FAST/reference
truncate -s 448M "$FILE"
root mkfs.ext4 -q -F -b 4096 "$FILE"
LOOP=$(root losetup --find --show "$FILE") || fail "no loop device"
on_exit detach_loop "$LOOP" "$FILE"
REFERENCE=$SCRATCH/reference
mkdir "$REFERENCE"
on_exit unmount "$REFERENCE"
root mount -t ext4 "$LOOP" "$REFERENCE"
new_files 384
root chown "$EUID" "$REFERENCE"
# Only root can act as other users.
OPTIONS=()
[[ $EUID -ne 0 ]] || OPTIONS=(--allow-other)
mount_files "${OPTIONS[@]}"

if [[ $EUID -eq 0 ]]; then
    timeout 300 "$PYTHON" "$E2E/privileges.py" "$REFERENCE" "$MOUNT" >"$SCRATCH/privileges.log" 2>&1 || {
        tail -n 22 "$SCRATCH/privileges.log" >&2
        fail "files on a mount do not lose privileges as on ext4"
    }
    ok "$(tail -n 1 "$SCRATCH/privileges.log"): privileges go on a mount as on ext4"
fi

for ((round = 0; round < SEEDS; round++)); do
    seed=$([[ $round -eq 0 ]] && echo 1 || echo $RANDOM)
    timeout 600 "$PYTHON" "$E2E/differential.py" "$REFERENCE" "$MOUNT" "$seed" "$CALLS" \
        >"$SCRATCH/calls.log" 2>&1 || {
        tail -n 20 "$SCRATCH/calls.log" | cut -c1-1000 >&2
        fail "a mount is not as ext4, seed $seed"
    }
    say "seed $seed: $(tail -n 1 "$SCRATCH/calls.log")"
    rm -rf "${REFERENCE:?}/seed$seed" "${MOUNT:?}/seed$seed"
done
end_files
ok "$SEEDS times $CALLS random system calls are on a mount as on ext4"
