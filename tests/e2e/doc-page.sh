#!/usr/bin/env bash
#
# Runs the commands of one page (see doc_commands.py) in namespaces of mounts and processes of its own, as root.
#
# A layer above the root file system takes all changes, so a page can install, and write to /run and /etc. /mnt/pmem and
# /srv are folders of a sparse file system of 200 GiB: pools of the pages' sizes allocate nothing there. The current
# folder looks like a clone with a release build. `sudo` and `cargo` stand for programs that a machine of tests may lack:
# the second starts what is built already. All processes, mounts and loop devices end with this script.
#
# usage: unshare --mount --propagation private --pid --fork --kill-child doc-page.sh COMMANDS FOLDER

set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$E2E/../.." && pwd)
BUILT=$(dirname "$EVERBYTE")
PAGE=/var/lib/page
MEDIUM=/var/lib/medium

enter_machine() {
    local commands=$1 folder=$2 root=$2/root place device
    mount -t tmpfs -o mode=755 tmpfs "$folder"
    mkdir "$folder/upper" "$folder/work" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    for place in run tmp dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "$root/$place"; done
    # After /tmp, which may have the clone or the build.
    for place in "$TOP" "$BUILT"; do
        mkdir -p "$root$place"
        mount --bind "$place" "$root$place"
    done

    # Root alone can write to the file: the program inspects what lies below a pool.
    (umask 077 && truncate -s 200G "$root$MEDIUM")
    mkfs.ext4 -q -N 4096 -O ^has_journal "$root$MEDIUM"
    mkdir -p "$root"/mnt/{medium,pmem}
    device=$(losetup --find --show "$root$MEDIUM")
    blockdev --setrw "$device" # a user before us may have left it read-only
    mount "$device" "$root/mnt/medium"
    losetup -d "$device" # takes effect at the end of the mount
    for place in mnt/pmem srv; do
        mkdir "$root/mnt/medium/$(basename "$place")"
        mount --bind "$root/mnt/medium/$(basename "$place")" "$root/$place"
    done

    make_clone "$root$PAGE"
    install -m 755 "$commands" "$root$PAGE/commands"
    exec chroot "$root" "$E2E/doc-page.sh" --inside
}

# make_clone DIR: a clone with a release build, and the programs that stand for others.
make_clone() {
    local file
    mkdir -p "$1/target/release" "$1/programs"
    for file in crates docs tests; do ln -s "$TOP/$file" "$1/$file"; done
    for file in "$BUILT"/{everbyte,everbyte-bench,xtask,libeverbyte_preload.so} "$BUILT"/{deps/,}libeverbyte_region.so; do
        [[ ! -e $file ]] || ln -sf "$file" "$1/target/release/"
    done
    ln -s "$EVERBYTE" "$1/programs/everbyte"
    printf '#!/bin/bash\n[[ $1 != -u ]] || exec runuser -u "$2" -- "${@:3}"\nexec "$@"\n' >"$1/programs/sudo"
    cat >"$1/programs/cargo" <<'END'
#!/bin/bash
case "$*" in
"build --release" | "build --release -p everbyte-cli") test -x target/release/everbyte ;;
"build --release --locked -p everbyte-preload") test -e target/release/libeverbyte_preload.so ;;
"build --release -p everbyte-swap-c") test -e target/release/libeverbyte_region.so ;;
"run --release -p everbyte-bench -- "*) exec target/release/everbyte-bench "${@:6}" ;;
"xtask "*) exec target/release/xtask "${@:2}" ;;
*) echo "cargo $* needs a mark, or a line in doc-page.sh" >&2 && exit 2 ;;
esac
END
    chmod 755 "$1"/programs/*
}

# --- in the machine -----------------------------------------------------------------------------

LOG=/var/lib/page-output
AT=
LAST_JOB=
READY=0

count_ready() { grep -c '^ready' "$LOG" || true; }

# before_command: if the last command started a server, waits until it is ready, as its reader does.
before_command() {
    local left
    if [[ ${!:-} != "$LAST_JOB" ]]; then
        LAST_JOB=$!
        for ((left = 400; left > 0; left--)); do
            [[ $(count_ready) -eq $READY ]] || break
            kill -0 "$LAST_JOB" 2>/dev/null || break
            sleep 0.05
        done
        [[ $(count_ready) -gt $READY ]] || exit 1
    fi
    READY=$(count_ready)
}

# block PLACE COMMANDS
block() {
    AT=$1
    trap before_command DEBUG
    eval "$2" </dev/null >>"$LOG" 2>&1
    before_command
    trap - DEBUG
}

skipped() { :; }

# end_servers: for the marks "before": ends the servers of earlier blocks.
end_servers() {
    local server
    for server in $(jobs -rp); do
        kill "$server"
        wait "$server"
    done
}

report() {
    local status=$?
    [[ $status -ne 0 ]] || return
    printf '%s: status %s\n' "$AT" "$status"
    tail -n 20 "$LOG"
} >&2

run_page() {
    trap report EXIT
    : >"$LOG"
    cd "$PAGE"
    export PATH=$PAGE/programs:$PATH HOME=/root
    set -o functrace
    # shellcheck disable=SC1091 # made by doc_commands.py
    source ./commands
}

if [[ $1 == --inside ]]; then run_page; else enter_machine "$@"; fi
