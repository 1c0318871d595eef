#!/usr/bin/env bash
#
# What programs ask of a file system, on a mount: stress-ng's file-system stressors, dbench, fs_mark, fio
# with verification, git, cargo, tar, rsync, SQLite and PostgreSQL. Each checks what it reads.
#
# usage: mount-suites.sh short|full [SUITE...]
#
# As root the mount is for all users, since PostgreSQL refuses to run as root.

source "$(dirname "$0")/lib.sh"
# Functions have the names of some of the programs that they run.
need stress-ng dbench fs_mark fio git cargo tar rsync sqlite3 fusermount3 umount setpriv sha256sum

case ${1:-} in
short) LENGTH=0 ;;
full) LENGTH=1 ;;
*) fail "usage: mount-suites.sh short|full [SUITE...]" ;;
esac
shift
SUITES=("$@")
[[ ${#SUITES[@]} -gt 0 ]] || SUITES=(stressors dbench fs_mark fio trees git sqlite postgresql)

# either SHORT FULL: the one that the length asked for.
either() { [[ $LENGTH -eq 0 ]] && printf %s "$1" || printf %s "$2"; }

# quietly TITLE COMMAND...: shows what the command says only if it fails.
quietly() {
    local title=$1
    shift
    "$@" >"$SCRATCH/suite.log" 2>&1 || {
        tail -n 40 "$SCRATCH/suite.log" >&2
        fail "$title"
    }
}

# --- exercisers -------------------------------------------------------------------------------

# Stressors of the class that cannot run here:
# - bind-mount: mounts over and over, which stress-ng itself calls pathological; no matter of files
# - binderfs: mounts a file system of its own
# - fiemap: the kernel answers FIEMAP for FUSE on block devices only
# - io: syncs every file system of the machine, also those whose devices another script has just killed
# - procfs: reads all of the machine's /proc and nothing of the mount
# - verity: the kernel passes no request to enable fs-verity to FUSE unless the server has the ioctl
EXCLUDED=bind-mount,binderfs,fiemap,io,procfs,verity

stressors() {
    local mode
    mode=$(either "--all 1 --timeout 10s" "--sequential 2 --timeout 15s")
    mkdir "$MOUNT/stressors"
    # One of them makes files where it is started, whatever it is told, and may leave one.
    # shellcheck disable=SC2086 # two options and their values
    quietly "stress-ng" env --chdir="$MOUNT/stressors" stress-ng --class filesystem $mode --exclude "$EXCLUDED" --verify \
        --copy-file-bytes 128M --fallocate-bytes 64M --hdd-bytes 64M --iomix-bytes 64M \
        --temp-path "$MOUNT/stressors"
    ! grep -E 'aborted early' "$SCRATCH/suite.log" >&2 || fail "a stressor did not run"
    ! grep -E ' fail: ' "$SCRATCH/suite.log" >&2 || fail "stress-ng found what is wrong"
    # The stressor of attributes may be ended before it clears its own.
    chattr -R -f -ia "$MOUNT/stressors" || true
    rm -rf "$MOUNT/stressors"
    ok "stress-ng's file-system stressors find nothing wrong"
}

dbench() {
    mkdir "$MOUNT/dbench"
    quietly "dbench" command dbench -t "$(either 3 60)" -D "$MOUNT/dbench" 4
    grep -q '^Throughput' "$SCRATCH/suite.log" || fail "dbench did not come to its end"
    ! grep -E '^\[[0-9]+\]' "$SCRATCH/suite.log" >&2 || fail "dbench found what is wrong"
    rm -rf "$MOUNT/dbench"
    ok "dbench, four clients: $(grep '^Throughput' "$SCRATCH/suite.log")"
}

fs_mark() {
    local sync
    # As its -S has them: no fsync, before close, afterwards in two orders. It takes short paths only.
    for sync in 0 1 3 5; do
        # A directory for each of the two threads: both take the names of their files from a generator that is
        # seeded with the microsecond, and where that is the same they write, and unlink, the same files.
        mkdir -p "$MOUNT/fs_mark/"{1,2}
        quietly "fs_mark with sync method $sync" env -C "$MOUNT" fs_mark -d fs_mark/1 -d fs_mark/2 -s 16384 \
            -t 2 -n "$(either 500 20000)" -S "$sync" -D 16 -N 10 -l "$SCRATCH/fs_mark.log"
        rm -rf "$MOUNT/fs_mark"
    done
    ok "fs_mark with every way of fsync"
}

fio() {
    local engine direct
    for engine in psync pvsync2 libaio io_uring posixaio mmap; do
        for direct in 0 1; do
            [[ $engine.$direct != mmap.1 ]] || continue
            quietly "fio: $engine, direct=$direct" command fio --name="$engine" \
                --filename="$MOUNT/fio" --size="$(either 16M 128M)" --loops="$(either 1 4)" \
                --rw=randrw --bsrange=512-128k --blockalign=512 --ioengine="$engine" \
                --direct="$direct" --iodepth=8 --fallocate=none --verify_state_save=0 --verify=crc32c --verify_fatal=1
            rm "$MOUNT/fio"
        done
    done
    ok "fio reads what it wrote by six engines"
}

# --- trees ------------------------------------------------------------------------------------

trees() {
    local from=$SCRATCH/tree
    mkdir "$from" "$MOUNT/tar" "$MOUNT/rsync"
    tar -C "$TOP" --exclude=target --exclude=.git -cf - . | tar -C "$from" -xf -
    ln "$from/README.md" "$from/second"
    ln -s README.md "$from/link"
    truncate -s 5M "$from/hole"
    tar -C "$from" -cSf - . | tar -C "$MOUNT/tar" -xpf -
    has_same_files "$MOUNT/tar" "$from" || fail "tar: the tree differs"
    quietly "rsync" rsync -aHSX "$from/" "$MOUNT/rsync/"
    stop_server
    mount_files "${OPTIONS[@]}"
    quietly "rsync -c" rsync -aHXcni --delete "$from/" "$MOUNT/rsync/"
    [[ ! -s $SCRATCH/suite.log ]] || fail "rsync: $(head -n 3 "$SCRATCH/suite.log")"
    # The times of directories are what tar set, so rsync finds nothing to do in its tree either.
    quietly "rsync -c" rsync -aHXcni --delete "$from/" "$MOUNT/tar/"
    [[ ! -s $SCRATCH/suite.log ]] || fail "tar: $(head -n 3 "$SCRATCH/suite.log")"
    tar -C "$MOUNT/rsync" -cf - . | tar -C "$MOUNT/tar" -df - >/dev/null || fail "tar: compared trees differ"
    rm -rf "$from" "$MOUNT/tar" "$MOUNT/rsync"
    ok "trees copied by tar and rsync are the same, also after mounting again"
}

git() {
    local clone=$MOUNT/clone crate changes
    printf '[safe]\n\tdirectory = *\n' >"$SCRATCH/gitconfig"
    export GIT_CONFIG_GLOBAL=$SCRATCH/gitconfig
    quietly "git clone" command git clone --no-hardlinks "$TOP" "$clone"
    quietly "git fsck" command git -C "$clone" fsck --full --strict
    quietly "git checkout" command git -C "$clone" checkout -q -b other HEAD~1
    quietly "git gc" command git -C "$clone" gc -q --prune=now
    changes=$(command git -C "$clone" status --porcelain) || fail "git status"
    [[ -z $changes ]] || fail "git: the clone has changes"
    crate=$(either everbyte-plant everbyte-slots)
    # The compiler and its tests run from the mount.
    quietly "cargo test -p $crate" env -C "$clone" CARGO_TARGET_DIR="$MOUNT/target" \
        cargo test --quiet --offline -p "$crate"
    rm -rf "$clone" "$MOUNT/target"
    ok "git clones, packs and checks; cargo builds $crate and its tests pass"
}

# --- data bases -------------------------------------------------------------------------------

# insert_statements: rows 1, 2, 3, ... each in a transaction of its own, and its number once it is
# committed.
insert_statements() {
    local row
    for ((row = 1; row < 1000000; row++)); do
        printf 'insert into t values (%d, hex(randomblob(300)));\nselect %d;\n' "$row" "$row"
    done
}

# With synchronous=extra the directory is synced after the journal is unlinked, which commits. To
# SQLite a directory that cannot be opened for that is one that needs no sync: if the server is killed
# just after it has unlinked the journal, SQLite calls the last row committed, and nobody made it so.
# sqlite_round JOURNAL: kill -9 of the mount under a writer; what was committed must be there.
sqlite_round() {
    local journal=$1 database=$MOUNT/$1.db writer committed unsure=0
    [[ $journal != delete ]] || unsure=1
    quietly "sqlite: make" sqlite3 "$database" "pragma journal_mode=$journal; drop table if exists t;
        create table t (n integer primary key, bytes text);"
    (
        printf 'pragma journal_mode=%s;\npragma synchronous=extra;\n' "$journal"
        insert_statements
    ) 2>/dev/null | sqlite3 -batch -bail "$database" >"$SCRATCH/committed" 2>"$SCRATCH/sqlite.log" &
    writer=$!
    on_exit end_process "$writer"
    sleep "$(either 0.7 3)"
    ! process_is_gone "$writer" ||
        fail "sqlite, journal_mode=$journal, ended before the kill: $(tail -n 3 "$SCRATCH/sqlite.log")"
    kill_server
    within 60 process_is_gone "$writer" || fail "sqlite hangs after the mount is gone"
    wait "$writer" || true
    mount_files "${OPTIONS[@]}"
    committed=$(grep -E '^[0-9]+$' "$SCRATCH/committed" | tail -n 1) || true
    [[ ${committed:-0} -gt 0 ]] || fail "sqlite: nothing was committed with journal_mode=$journal"
    sqlite3 "$database" "pragma integrity_check; select count(*) >= $committed - $unsure and
        count(*) = max(n) from t;" >"$SCRATCH/suite.log" 2>&1 || true
    [[ $(cat "$SCRATCH/suite.log") == $'ok\n1' ]] ||
        fail "sqlite, journal_mode=$journal, $committed rows: $(head -n 3 "$SCRATCH/suite.log")"
    ROWS=$((ROWS + committed))
}

sqlite() {
    local round journal
    ROWS=0
    for ((round = 0; round < $(either 1 5); round++)); do
        for journal in wal delete truncate persist; do
            sqlite_round "$journal"
        done
    done
    rm -f "$MOUNT"/*.db*
    ok "sqlite keeps $ROWS committed rows over kills of the mount, and is whole"
}

# as_user COMMAND...: as a user who is not root.
as_user() {
    if [[ $EUID -eq 0 ]]; then
        setpriv --reuid nobody --regid nogroup --clear-groups --no-new-privs "$@"
    else
        "$@"
    fi
}

postgresql() {
    local bin data=$MOUNT/postgresql start
    bin=$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -n 1)
    [[ -x $bin/initdb && -x $bin/pg_amcheck ]] || fail "PostgreSQL is not installed"
    mkdir "$data"
    chmod 777 "$data"
    start=("$bin/pg_ctl" -D "$data/cluster" -w -l "$data/log" -o "-k $data -h ''")
    on_exit as_user "$bin/pg_ctl" -D "$data/cluster" -m immediate stop
    export PGHOST=$data
    quietly "initdb" as_user "$bin/initdb" -D "$data/cluster" -k -A trust -U bench
    quietly "postgres" as_user "${start[@]}" start
    quietly "createdb" as_user "$bin/createdb" -U bench bench
    quietly "pgbench -i" as_user "$bin/pgbench" -U bench -q -i -s "$(either 1 10)" bench
    quietly "pgbench" as_user "$bin/pgbench" -U bench -T "$(either 3 60)" -c 4 bench
    grep -q 'failed transactions: 0 ' "$SCRATCH/suite.log" || fail "pgbench: transactions failed"
    # Recovers from its log, as after a crash.
    quietly "postgres: stop" as_user "$bin/pg_ctl" -D "$data/cluster" -m immediate stop
    quietly "postgres: recovery" as_user "${start[@]}" start
    quietly "pg_amcheck" as_user "$bin/pg_amcheck" -U bench --install-missing --heapallindexed -a
    quietly "postgres: end" as_user "$bin/pg_ctl" -D "$data/cluster" -m fast stop
    quietly "pg_checksums" as_user "$bin/pg_checksums" -c -D "$data/cluster"
    rm -rf "$data"
    ok "postgresql: pgbench, recovery, pg_amcheck and pg_checksums find nothing wrong"
}

OPTIONS=()
[[ $EUID -ne 0 ]] || OPTIONS=(--allow-other)
new_files 1280
mount_files "${OPTIONS[@]}"
for suite in "${SUITES[@]}"; do
    started=$SECONDS
    "$suite"
    say "$suite: $((SECONDS - started)) s"
done
is_empty "$MOUNT" || fail "something is left on the mount: $(ls -A "$MOUNT")"
end_files
ok "the pool is sound after all of them"
