# shellcheck shell=bash
#
# What every end-to-end script shares: a server under test, a mount of a file system, the stack
# nbdfuse -> loop -> file system on top of a server, and the promise that nothing of either is left behind.
#
# Every resource is registered before it is used and given back in reverse order when the script
# ends, however it ends. A failed check ends the script. A check that holds prints a line that
# begins with "ok - "; run-all.sh counts them.

set -euo pipefail

E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$E2E/../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
PYTHON=/usr/bin/python3

RUN=${EVERBYTE_E2E_RUN:-$$}
NAME=$(basename "$0" .sh)
CLEANUPS=()
SERVER_PID=
SERVERS_STARTED=0
STACKS_MADE=0

say() { printf '%s\n' "$*"; }
ok() { printf 'ok - %s: %s\n' "$NAME" "$*"; }
fail() {
    printf 'FAILED - %s: %s\n' "$NAME" "$*" >&2
    if [[ -n ${SERVER_LOG:-} && -s $SERVER_LOG ]]; then
        printf -- '--- the last server said:\n' >&2
        tail -n 20 "$SERVER_LOG" >&2
    fi
    exit 1
}

root() {
    if [[ $EUID -eq 0 ]]; then "$@"; else sudo -n "$@"; fi
}

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || fail "$tool is not installed"
    done
}

# on_exit COMMAND ARGS...: runs the command when the script ends.
on_exit() { CLEANUPS+=("$(printf '%q ' "$@")"); }

clean_up() {
    local status=$? at
    trap - EXIT
    set +e
    for ((at = ${#CLEANUPS[@]} - 1; at >= 0; at--)); do
        eval "${CLEANUPS[at]}" >/dev/null 2>&1
    done
    exit "$status"
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# within SECONDS COMMAND...: repeats the command until it succeeds.
within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [[ $SECONDS -lt $deadline ]] || return 1
        sleep 0.05
    done
}

SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/everbyte-e2e.$RUN.XXXXXX")
on_exit rm -rf "$SCRATCH"
FAST=$(mktemp -d "/dev/shm/everbyte-e2e.$RUN.XXXXXX")
on_exit rm -rf "$FAST"
SOCKET=$SCRATCH/nbd.socket

if [[ -z ${EVERBYTE:-} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-cli) || fail "the build failed"
    EVERBYTE=${CARGO_TARGET_DIR:-$TOP/target}/release/everbyte
fi
[[ -x $EVERBYTE ]] || fail "$EVERBYTE cannot be run"
export EVERBYTE

# --- processes --------------------------------------------------------------------------------

# child_state PID: the state of a child of this shell; fails if it has none with this number. Numbers are used again:
# a process with this one and another parent is not ours.
child_state() {
    local stat state parent
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The program's name is in parentheses and may have some itself, and spaces.
    read -r state parent _ <<<"${stat##*) }"
    [[ $parent -eq $$ ]] || return 1
    printf %s "$state"
}

# process_is_gone PID: no child of this shell with this number runs.
process_is_gone() {
    local state
    state=$(child_state "$1") || return 0
    [[ $state == Z ]]
}

# end_process PID: kills a child of this shell, if it still has it, and what that has started.
end_process() {
    child_state "$1" >/dev/null || return 0
    kill_tree "$1"
    wait "$1"
}

kill_tree() {
    local child children
    # Of "root COMMAND &" the number is that of a shell, and of sudo, whose child the command is.
    children=$(cat "/proc/$1/task/"*/children 2>/dev/null) || true
    root kill -9 "$1"
    for child in $children; do kill_tree "$child"; done
}

# --- the server -------------------------------------------------------------------------------

# start_server TARGET VOLUME [ARGS...]: serves TARGET (POOL or POOL/VOLUME) on $SOCKET and waits
# until VOLUME is ready. Sets SERVER_PID, SERVER_LOG and URI, the address of VOLUME.
start_server() {
    local target=$1 volume=$2
    shift 2
    SERVERS_STARTED=$((SERVERS_STARTED + 1))
    SERVER_OUT=$SCRATCH/server.$SERVERS_STARTED.out
    SERVER_LOG=$SCRATCH/server.$SERVERS_STARTED.log
    "$EVERBYTE" serve "$target" --nbd "unix:$SOCKET" "$@" >"$SERVER_OUT" 2>"$SERVER_LOG" &
    SERVER_PID=$!
    on_exit end_process "$SERVER_PID"
    within 20 server_is_ready_or_gone "$volume" || fail "the server was not ready after 20 s"
    URI=$(ready_uri "$volume")
    [[ -n $URI ]] || fail "the server ended before it was ready"
}

# start_bare_server TARGET [ARGS...]: serves TARGET without NBD and waits until the server has it. Sets
# SERVER_PID and SERVER_LOG. (What lists volumes would open the pool itself if it came first.)
start_bare_server() {
    SERVERS_STARTED=$((SERVERS_STARTED + 1))
    SERVER_OUT=$SCRATCH/server.$SERVERS_STARTED.out
    SERVER_LOG=$SCRATCH/server.$SERVERS_STARTED.log
    "$EVERBYTE" serve "$@" >"$SERVER_OUT" 2>"$SERVER_LOG" &
    SERVER_PID=$!
    on_exit end_process "$SERVER_PID"
    within 20 bare_server_is_ready_or_gone || fail "the server was not ready after 20 s"
    grep -q '^ready$' "$SERVER_OUT" || fail "the server ended before it was ready"
}

bare_server_is_ready_or_gone() { grep -q '^ready$' "$SERVER_OUT" || process_is_gone "$SERVER_PID"; }

ready_uri() { sed -n "s|^ready: \(nbd.*/$1?socket=.*\)\$|\1|p" "$SERVER_OUT" | head -n 1; }

# is_ready VOLUME: the server has said so.
is_ready() { [[ -n $(ready_uri "$1") ]]; }

server_is_ready_or_gone() { is_ready "$1" || process_is_gone "$SERVER_PID"; }

# stop_server: asks the server to end and expects a clean end.
stop_server() {
    local status=0
    ! process_is_gone "$SERVER_PID" || fail "the server ended before it was asked to"
    kill -TERM "$SERVER_PID"
    within 60 process_is_gone "$SERVER_PID" || fail "the server did not end within 60 s of SIGTERM"
    wait "$SERVER_PID" || status=$?
    [[ $status -eq 0 ]] || fail "the server ended with status $status after SIGTERM"
}

# kill_server: kill -9 of one that still runs.
kill_server() {
    ! process_is_gone "$SERVER_PID" || fail "the server ended before it was killed"
    kill -9 "$SERVER_PID"
    wait "$SERVER_PID" 2>/dev/null || true
}

# new_pool PATH SIZE VOLUME SIZE [ARGS...]: a pool with one volume.
new_pool() {
    local pool=$1 pool_size=$2 volume=$3 volume_size=$4
    shift 4
    rm -f "$pool"
    "$EVERBYTE" pool create "$pool" --size "$pool_size" >/dev/null
    "$EVERBYTE" volume create "$pool" "$volume" --size "$volume_size" "$@" >/dev/null
}

# --- a mount ------------------------------------------------------------------------------------

# new_files SIZE_MIB: a pool, $POOL, with the file system "files" of this size, and a place for its
# mount, $MOUNT.
new_files() {
    POOL=$FAST/files.pool
    MOUNT=$SCRATCH/mount
    chmod 755 "$SCRATCH"
    mkdir "$MOUNT"
    on_exit unmount "$MOUNT"
    "$EVERBYTE" pool create "$POOL" --size "$(($1 + 64))M" >/dev/null
    "$EVERBYTE" volume create "$POOL" files --kind fs --size "$1M" >/dev/null
}

# mount_files [ARGS...]: mounts the file system on $MOUNT and waits until it is there. Sets
# SERVER_PID and SERVER_LOG.
mount_files() {
    SERVERS_STARTED=$((SERVERS_STARTED + 1))
    SERVER_OUT=$SCRATCH/server.$SERVERS_STARTED.out
    SERVER_LOG=$SCRATCH/server.$SERVERS_STARTED.log
    "$EVERBYTE" mount "$POOL/files" "$MOUNT" "$@" >"$SERVER_OUT" 2>"$SERVER_LOG" &
    SERVER_PID=$!
    on_exit end_process "$SERVER_PID"
    within 20 grep -q '^ready: ' "$SERVER_OUT" || fail "the file system was not mounted after 20 s"
}

# end_files: ends the mount and expects a sound pool.
end_files() {
    stop_server
    "$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not sound"
    "$EVERBYTE" pool scrub "$POOL" >/dev/null || fail "the file system is not sound"
}

# --- a writer that notes what fsync acknowledged ------------------------------------------------

# start_fsync_writer DIRECTORY LEDGER: see fsync_writer.py. Sets WRITER_PID, WRITER_LEDGER and WRITER_LOG.
start_fsync_writer() {
    WRITER_LEDGER=$2
    WRITER_LOG=$SCRATCH/writer.log
    root "$PYTHON" "$E2E/fsync_writer.py" write "$1" "$2" 2>"$WRITER_LOG" &
    WRITER_PID=$!
    on_exit end_process "$WRITER_PID"
}

# has_acknowledged LEDGER: its writer has noted an fsync since the ledger was verified last.
has_acknowledged() { grep -q '^done ' "$1"; }

# kill_under_fsync_writer [PID...]: kills the server at a random moment, at which the writer, and processes PID, work.
# The writer must then end.
kill_under_fsync_writer() {
    local other
    sleep "0.$((RANDOM % 9 + 1))"
    sleep "0.$((RANDOM % 9 + 1))"
    within 30 has_acknowledged "$WRITER_LEDGER" ||
        fail "no fsync was acknowledged: $(tail -n 3 "$WRITER_LOG")"
    ! process_is_gone "$WRITER_PID" ||
        fail "the writer ended before its server: $(tail -n 3 "$WRITER_LOG")"
    for other in "$@"; do
        ! process_is_gone "$other" || fail "the load ended before its server"
    done
    kill_server
    within 60 process_is_gone "$WRITER_PID" || fail "the writer hangs after its server is gone"
    wait "$WRITER_PID" || fail "the writer failed: $(tail -n 3 "$WRITER_LOG")"
}

# --- the stack above a device -------------------------------------------------------------------------

# attach_file URI: makes the export a file, $FILE, through nbdfuse.
attach_file() {
    STACKS_MADE=$((STACKS_MADE + 1))
    FUSE_DIR=$SCRATCH/fuse.$STACKS_MADE
    FILE=$FUSE_DIR/nbd
    mkdir "$FUSE_DIR"
    # nbdfuse may abort when its server dies; what it says then is not for the reader.
    { root nbdfuse "$FILE" "$1"; } >>"$SCRATCH/nbdfuse.log" 2>&1 &
    on_exit end_process "$!"
    on_exit detach_fuse "$FUSE_DIR"
    within 20 root test -f "$FILE" || fail "nbdfuse did not come up"
}

# attach_loop URI: makes the export a block device, $LOOP.
attach_loop() {
    attach_file "$1"
    LOOP=$(root losetup --find --show "$FILE") || fail "no loop device"
    on_exit detach_loop "$LOOP" "$FILE"
}

# mount_loop TYPE [ARGS...]: mounts $LOOP on $MOUNT.
mount_loop() {
    local type=$1
    shift
    MOUNT=$SCRATCH/mount.$STACKS_MADE
    mkdir -p "$MOUNT"
    on_exit unmount "$MOUNT"
    root mount -t "$type" "$@" "$LOOP" "$MOUNT" || fail "cannot mount $type"
}

# is_mounted DIR: by the kernel's list, because a file system whose device is gone fails `stat`.
is_mounted() { grep -qF " $1 " /proc/mounts; }

unmount() {
    is_mounted "$1" || return 0
    within 20 root umount "$1" || root umount -l "$1"
}

detach_loop() {
    loop_is_ours "$1" "$2" || return 0
    root losetup -d "$1"
    within 20 loop_is_not_ours "$1" "$2"
}

loop_is_ours() { grep -qsF "$2" "/sys/block/${1#/dev/}/loop/backing_file"; }
loop_is_not_ours() { ! loop_is_ours "$@"; }

detach_fuse() {
    is_mounted "$1" || return 0
    within 20 root fusermount3 -u "$1" || root umount -l "$1"
}

# tear_down: takes the whole stack apart; the server may be dead already.
tear_down() {
    [[ -z ${MOUNT:-} ]] || unmount "$MOUNT"
    [[ -z ${LOOP:-} ]] || detach_loop "$LOOP" "$FILE" || fail "$LOOP does not let go"
    detach_fuse "$FUSE_DIR" || fail "nbdfuse does not let go"
    MOUNT='' LOOP=''
}

# check_fs TYPE DEVICE: runs the file system's own checker without changing anything.
check_fs() {
    local log=$SCRATCH/fsck.log
    case $1 in
    ext4) root e2fsck -fn "$2" ;;
    xfs) root xfs_repair -n "$2" ;;
    # Forced: without it every mount of the machine is looked at, also those of servers just killed.
    btrfs) root btrfs check --readonly --force "$2" ;;
    vfat) fsck.fat -n "$2" ;;
    ntfs) root ntfsfix -n "$2" ;;
    *) fail "no checker for $1" ;;
    esac >"$log" 2>&1 || {
        cat "$log" >&2
        fail "$1 is not clean"
    }
}

# make_fs TYPE DEVICE
make_fs() {
    case $1 in
    ext4) root mkfs.ext4 -q "$2" ;;
    xfs) root mkfs.xfs -q -f "$2" ;;
    btrfs) root mkfs.btrfs -q -f "$2" ;;
    vfat) mkfs.fat -F 32 "$2" ;;
    ntfs) root mkfs.ntfs -q -Q -F "$2" ;;
    *) fail "no mkfs for $1" ;;
    esac >/dev/null 2>"$SCRATCH/mkfs.log" || {
        cat "$SCRATCH/mkfs.log" >&2
        fail "mkfs for $1 failed"
    }
}

# manifest DIR: a line with checksum and name for every file below DIR.
manifest() {
    (cd "$1" && root find . -type f -print0 | LC_ALL=C sort -z | root xargs -0 -r sha256sum)
}

# has_same_files DIR DIR: both have the same files, and there are some.
has_same_files() {
    local one other
    one=$(manifest "$1") || fail "the files of $1 cannot be read"
    other=$(manifest "$2") || fail "the files of $2 cannot be read"
    [[ -n $one && $one == "$other" ]]
}

# is_empty DIR
is_empty() {
    local names
    names=$(ls -A "$1") || fail "$1 cannot be listed"
    [[ -z $names ]]
}

# data_bytes URI: bytes of the export that are not holes.
data_bytes() {
    nbdinfo --map --json "$1" |
        "$PYTHON" -c 'import json,sys; print(sum(e["length"] for e in json.load(sys.stdin) if not e["type"] & 1))'
}

# json_get EXPRESSION: evaluates a Python expression over `d`, the JSON on standard input.
json_get() { "$PYTHON" -c "import json,sys; d=json.load(sys.stdin); print($1)"; }

# refused STATUS PATTERN COMMAND...: the command must end with this status and say something on
# standard error that matches the pattern. What it says is left in refused.out and refused.err.
refused() {
    local status=0 expected=$1 pattern=$2
    shift 2
    "$@" >"$SCRATCH/refused.out" 2>"$SCRATCH/refused.err" || status=$?
    [[ $status -eq $expected ]] ||
        fail "status $status instead of $expected from: $* ($(head -c 500 "$SCRATCH/refused.err"))"
    [[ -z $pattern ]] || grep -Eqi -- "$pattern" "$SCRATCH/refused.err" ||
        fail "'$(head -c 500 "$SCRATCH/refused.err")' does not match '$pattern' from: $*"
}
