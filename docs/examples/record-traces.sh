#!/usr/bin/env bash
#
# Records what real programs ask of a block device: a file system on our NBD export, with nbdfuse and a loop
# device between, under `everbyte serve --record`. Two recordings of the same program differ, as its
# times do; the list of the traces that the tables were made of has the hashes of one.
#
# usage: [FILE_SYSTEM=ext4|xfs|btrfs] record-traces.sh DIRECTORY [TRACE...]
#
# Needs root, or sudo without a password, and the packages of tests/e2e.

[[ $# -ge 1 ]] || { sed -n '3,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
OUT=$(mkdir -p "$1" && cd "$1" && pwd)
shift
WANTED=("$@")
# shellcheck source=tests/e2e/lib.sh
source "$(dirname "$0")/../../tests/e2e/lib.sh"
FILE_SYSTEM=${FILE_SYSTEM:-ext4}
need nbdfuse losetup fusermount3 "mkfs.$FILE_SYSTEM" git tar gcc sqlite3 dbench fio stress-ng
[[ ${#WANTED[@]} -gt 0 ]] ||
    WANTED=(git trees build mail sqlite-delete sqlite-wal sqlite-read postgres postgres-read
        dbench fio-random fio-mixed stress)

POOL=$FAST/pool
REPOSITORY=${REPOSITORY:-$TOP}

# remount: so that what the kernel has of the files is read again.
remount() {
    root umount "$MOUNT"
    root mount -t "$FILE_SYSTEM" "$LOOP" "$MOUNT"
}

git_() {
    git clone -q --no-hardlinks "$REPOSITORY" "$MOUNT/clone"
    remount
    git -C "$MOUNT/clone" log --stat -40 >/dev/null
    git -C "$MOUNT/clone" checkout -q HEAD~20
    git -C "$MOUNT/clone" status >/dev/null
    sync
    remount
    git -C "$MOUNT/clone" repack -adq
    git -C "$MOUNT/clone" grep -c fn >/dev/null
}

trees() {
    local round
    git -C "$REPOSITORY" archive HEAD | tar -x -C "$MOUNT"
    for round in 1 2 3; do
        remount
        mkdir "$MOUNT/copy.$round"
        cp -r "$MOUNT/crates" "$MOUNT/docs" "$MOUNT/copy.$round"
        sync
        [[ $round -lt 3 ]] || rm -rf "$MOUNT/copy.1"
        tar -c -C "$MOUNT" crates | sha256sum >/dev/null
    done
}

build() {
    local number round
    mkdir "$MOUNT/src"
    for number in $(seq 60); do
        printf '#include <stdio.h>\n#include <stdlib.h>\nint f%d(int n) { return printf("%%d", n + %d); }\n' \
            "$number" "$number" >"$MOUNT/src/f$number.c"
    done
    for round in 1 2; do
        for number in $(seq 60); do gcc -g -c "$MOUNT/src/f$number.c" -o "$MOUNT/src/f$number.o"; done
        sync
        gcc -shared "$MOUNT"/src/*.o -o "$MOUNT/src/all.$round.so"
        remount
    done
}

mail() {
    "$PYTHON" - "$MOUNT" <<'PYTHON'
import os, random, sys
random.seed(1)
top, kept = sys.argv[1], []
for number in range(1500):
    path = f"{top}/{number}"
    with open(path, "wb") as file:
        file.write(random.randbytes(int(random.paretovariate(1.2) * 1500) % 60000 + 200))
        file.flush()
        os.fsync(file.fileno())
    kept.append(path)
    if len(kept) > 400:
        os.unlink(kept.pop(random.randrange(len(kept))))
PYTHON
}

# sqlite_ MODE: rows put in and changed in the journal mode.
sqlite_() {
    "$PYTHON" - "$MOUNT/db" "$1" <<'PYTHON'
import random, sqlite3, sys
random.seed(2)
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma cache_size = 200")
db.execute(f"pragma journal_mode = {sys.argv[2]}")
db.execute("create table t (k integer primary key, v blob, n integer)")
db.execute("create index i on t (n)")
for _ in range(300):
    db.execute("begin")
    for _ in range(20):
        db.execute("insert or replace into t values (?, ?, ?)",
                   (random.randrange(20000), random.randbytes(300), random.randrange(1000)))
    db.execute("commit")
for _ in range(500):
    db.execute("update t set n = n + 1 where k = ?", (int(random.paretovariate(0.5)) % 20000,))
PYTHON
}

sqlite_read() {
    local number
    sqlite_ delete
    for number in 1 2 3; do
        remount
        sqlite3 "$MOUNT/db" "select count(*) from t where n = $number; select sum(length(v)) from t where k % 37 < 9"
    done >/dev/null
}

as_nobody() { root setpriv --reuid=65534 --regid=65534 --clear-groups env PGHOST="$MOUNT" "$@"; }

postgres_() {
    chmod 755 "$SCRATCH"
    root chmod 777 "$MOUNT"
    rmdir "$MOUNT/lost+found" 2>/dev/null || true
    as_nobody initdb -D "$MOUNT/cluster" -A trust -U bench >/dev/null
    as_nobody pg_ctl -D "$MOUNT/cluster" -w -l "$MOUNT/log" -o "-k $MOUNT -h '' -c shared_buffers=2MB" start >/dev/null
    on_exit as_nobody pg_ctl -D "$MOUNT/cluster" -m immediate stop
    as_nobody createdb -U bench bench
    as_nobody pgbench -U bench -q -i -s 2 bench 2>/dev/null
    as_nobody pgbench -U bench -T "$1" -c 4 bench >/dev/null 2>&1
    as_nobody pg_ctl -D "$MOUNT/cluster" -m fast stop >/dev/null
}

postgres_read() {
    local round
    postgres_ 4
    for round in 1 2 3; do
        remount
        as_nobody pg_ctl -D "$MOUNT/cluster" -w -l "$MOUNT/log" -o "-k $MOUNT -h '' -c shared_buffers=1MB" start >/dev/null
        as_nobody pgbench -U bench -S -t "$((round * 300))" bench >/dev/null 2>&1
        as_nobody pg_ctl -D "$MOUNT/cluster" -m fast stop >/dev/null
    done
}

fio_() { root fio --directory="$MOUNT" --direct=1 --ioengine=psync --randseed=3 --output=/dev/null "$@"; }

stress() {
    root stress-ng --temp-path "$MOUNT" --hdd 1 --hdd-bytes 16M --hdd-ops 4000 --iomix 1 --iomix-bytes 16M \
        --rename 1 --dentry 1 --dentries 300 --timeout 8s >/dev/null 2>&1
}

# program TRACE: what is recorded.
program() {
    case $1 in
    git) git_ ;;
    sqlite-delete) sqlite_ delete ;;
    sqlite-wal) sqlite_ wal ;;
    sqlite-read) sqlite_read ;;
    postgres) postgres_ 10 ;;
    postgres-read) postgres_read ;;
    dbench) dbench -t 6 -D "$MOUNT" 2 >/dev/null ;;
    fio-random) fio_ --name=a --rw=randrw --rwmixread=60 --bs=4k --size=48M --random_distribution=zipf:1.1 --io_size=60M ;;
    fio-mixed) fio_ --name=a --rw=randrw --bssplit=512/20:4k/40:16k/20:64k/20 --size=48M --random_distribution=pareto:0.2 --io_size=120M --bs_unaligned=0 ;;
    *) "$1" ;;
    esac
}

for trace in "${WANTED[@]}"; do
    new_pool "$POOL" 448M disk 320M
    start_server "$POOL" disk --record "$OUT/$FILE_SYSTEM-$trace.csv.zst" --force
    attach_loop "$URI"
    make_fs "$FILE_SYSTEM" "$LOOP"
    mount_loop "$FILE_SYSTEM"
    root chmod 777 "$MOUNT"
    program "$trace"
    sync -f "$MOUNT"
    tear_down
    stop_server
    say "$FILE_SYSTEM-$trace: $(stat -c %s "$OUT/$FILE_SYSTEM-$trace.csv.zst") bytes"
done
