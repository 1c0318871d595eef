#!/usr/bin/env bash
#
# The machine tests in short, for every change: disks by vhost-user-blk, machine kills on DAX, the kernel's NBD
# client with ext4 and NTFS, and caches of stacked devices. tests/nightly.sh has the rest; see tests/e2e/tally.sh for
# how it ends.

cd "$(dirname "$0")" || exit 1
LANES=${LANES:-2}
source ../e2e/tally.sh

# The longest first: two lanes end at about the same time.
run vhost.py 10
run kill.py 2
run client.py 0
run devices.py
tally
