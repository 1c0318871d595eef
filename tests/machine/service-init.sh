#!/bin/sh
# The first process of service.py's guest: mounts the disk with Debian, and starts its systemd. Runs in an initramfs with
# busybox and the modules.

mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
mkdir /system
mount -t ext4 /dev/vda /system || poweroff -f
mount --move /dev /system/dev
exec switch_root /system /lib/systemd/systemd
