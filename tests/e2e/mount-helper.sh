#!/usr/bin/env bash
#
# The program as a helper of mount(8): mount -t everbyte, lines of fstab, remounts. Needs root.

source "$(dirname "$0")/lib.sh"
need mount umount findmnt

[[ $EUID -eq 0 ]] || fail "mount -t must be run as root"

for type in everbyte fuse.everbyte; do
    helper=/sbin/mount.$type
    [[ ! -e $helper ]] || fail "$helper exists already"
    on_exit rm -f "$helper"
    ln -s "$(realpath "$EVERBYTE")" "$helper"
done

pool=$FAST/pool
dir=$SCRATCH/dir
mkdir "$dir"
on_exit umount -l "$dir"
"$EVERBYTE" pool create "$pool" --size 64M >/dev/null
"$EVERBYTE" volume create "$pool" files --kind fs --size 32M >/dev/null

# has OPTIONS: the mount has each of these options.
has() { findmnt -n -o OPTIONS "$dir" | tr , '\n' | grep -qxF -- "$1"; }
# refused TEXT COMMAND...: the command fails, and its standard error has the text.
refused() {
    local text=$1
    shift
    ! "$@" >/dev/null 2>"$SCRATCH/refused" || fail "$* succeeded"
    grep -qF -- "$text" "$SCRATCH/refused" || fail "$*: $(cat "$SCRATCH/refused")"
}
# is_closed: nobody has the pool any more.
is_closed() { "$EVERBYTE" pool check "$pool" && ! pgrep -f "everbyte mount.*$pool"; }

said=$(mount -t everbyte "everbyte:$pool/files" "$dir" \
    -o noexec,nosuid,nodev,noatime,nodiratime,allow_other,_netdev,nofail,x-systemd.automount 2>&1)
[[ -z $said ]] || fail "mount printed: $said"
for option in noexec nosuid nodev noatime nodiratime allow_other rw; do
    has $option || fail "no $option in $(findmnt -n -o OPTIONS "$dir")"
done
cp /bin/true "$dir/program"
refused "Permission denied" "$dir/program"
ok "mount -t everbyte applies options and ignores words for others"

mount -o remount,ro "$dir"
has ro || fail "not read-only after a remount"
refused "Read-only file system" touch "$dir/new"
for flag in noexec nosuid nodev noatime nodiratime; do has $flag || fail "the remount dropped $flag"; done
mount -o remount,rw,exec "$dir"
"$dir/program" || fail "exec has no effect at a remount"
touch "$dir/new"
mount -o remount,suid,dev "$dir"
has nosuid && has nodev || fail "a remount granted suid or dev"
refused "cannot change access times" mount -o remount,strictatime "$dir"
umount "$dir"
within 10 is_closed || fail "the pool stays open after umount"
ok "remounts change ro, rw, exec, and keep the rest"

mount -t fuse.everbyte "$pool/files" "$dir" -o ro
refused "Read-only file system" touch "$dir/new"
umount "$dir"
within 10 is_closed || fail "the pool stays open after umount"
printf 'everbyte:%s/files %s everbyte defaults,noatime,_netdev 0 0\n' "$pool" "$dir" >"$SCRATCH/fstab"
mount -T "$SCRATCH/fstab" "$dir"
has noatime || fail "fstab's options have no effect"
mount -T "$SCRATCH/fstab" -a || fail "mount -a fails at a mount that exists"
[[ $(findmnt -n -o TARGET "$dir" | wc -l) -eq 1 ]] || fail "mount -a mounted a second time"
echo kept >"$dir/kept"
umount "$dir"
mount -T "$SCRATCH/fstab" -a
[[ $(cat "$dir/kept") == kept ]] || fail "a file is lost after umount and mount -a"
umount "$dir"
ok "lines of fstab mount, also at once after umount"

for _ in {1..25}; do
    mount -T "$SCRATCH/fstab" "$dir" 2>"$SCRATCH/again" || fail "mount after umount: $(cat "$SCRATCH/again")"
    [[ $(cat "$dir/kept") == kept ]] || fail "a file is lost in a mount at once after umount"
    umount "$dir"
done
ok "25 mounts follow an umount at once"

within 10 is_closed || fail "the pool stays open after umount"
refused "mount option quota" mount -t everbyte "$pool/files" "$dir" -o quota
refused "mount option sync" mount -t everbyte "$pool/files" "$dir" -o sync
refused 'no volume named "other"' mount -t everbyte "$pool/other" "$dir"
refused "no pool" mount -t everbyte "$SCRATCH/none/files" "$dir"
refused "mount option threads=0" mount -t everbyte "$pool/files" "$dir" -o threads=0
refused "no everbyte file system" mount.everbyte "$pool/files" / -o remount,ro
ok "wrong options, volumes and directories are refused by name"

"$EVERBYTE" serve "$pool" --read-only --nbd "unix:$SOCKET" >/dev/null 2>&1 &
server=$!
on_exit end_process "$server"
within 10 test -S "$SOCKET" || fail "no server"
mount -t everbyte "everbyte:$pool/files" "$dir" -o ro 2>/dev/null
refused "has the file system read-only" mount -o remount,rw "$dir"
has ro || fail "writable although its server does not write"
umount "$dir"
ok "a mount of a read-only server stays read-only"
