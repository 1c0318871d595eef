#!/bin/sh
# The first process of the guest. Gives it the host's files to read and one folder to write to,
# both through 9p, and leaves the rest to guest.sh. Runs in an initramfs that holds busybox and the
# modules this needs.

fatal() {
    echo "machine: $*"
    poweroff -f
}

word() { sed -n "s/.*everbyte\.$1=\([^ ]*\).*/\1/p" /proc/cmdline; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module" || fatal "cannot load $module"
done
mkdir /host
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host ||
    fatal "the host's files cannot be seen"
for folder in proc sys dev; do mount --bind "/$folder" "/host/$folder"; done
mount -t tmpfs tmpfs /host/run
mkdir /host/dev/shm /host/run/share /host/run/mount
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 share /host/run/share ||
    fatal "there is no folder to write to"
PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    chroot /host /bin/bash "$(word script)" >/host/run/share/guest.log 2>&1
echo "$?" >/host/run/share/status
poweroff -f
