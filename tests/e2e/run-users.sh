#!/usr/bin/env bash
#
# `everbyte run` with programs that start others as other users or in sandboxes: each starts and
# works. A child without the right to page runs on ordinary memory, and one line reports it.
#
# usage: run-users.sh

source "$(dirname "$0")/lib.sh"
need gcc runuser start-stop-daemon "$PYTHON"
LIBRARY=$(dirname "$EVERBYTE")/libeverbyte_preload.so
if [[ ! -e ${EVERBYTE_PRELOAD:-$LIBRARY} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-preload) || fail "the build failed"
fi
[[ $EUID -eq 0 ]] || fail "only root can start programs of other users"

# The library is readable by all users here.
chmod 755 "$SCRATCH"
cp "${EVERBYTE_PRELOAD:-$LIBRARY}" "$SCRATCH/libeverbyte_preload.so"
chmod 755 "$SCRATCH/libeverbyte_preload.so"
export EVERBYTE_PRELOAD=$SCRATCH/libeverbyte_preload.so

# paged COMMAND...: the command by `everbyte run`, quiet about itself.
paged() {
    timeout 60 "$EVERBYTE" run --dram 16M -- "$@" 2>"$SCRATCH/run.log" || {
        cat "$SCRATCH/run.log" >&2
        return 1
    }
}

# ordinary_lines: lines about ordinary memory.
ordinary_lines() { grep -c "runs on ordinary memory: " "$SCRATCH/run.log" || true; }

# case: other-user
nobody=$(id -u nobody)
can_page=$(cat /proc/sys/vm/unprivileged_userfaultfd)
work="x = [bytes([n]) * (1 << 20) for n in range(50)]; import os; print(os.getuid(), x[49][7])"
told=$(paged runuser -u nobody -- "$PYTHON" -c "$work") || fail "runuser fails"
[[ $told == "$nobody 49" ]] || fail "a child of another user says '$told'"
[[ $can_page -ne 0 || $(ordinary_lines) -eq 1 ]] || fail "ordinary memory is reported $(ordinary_lines) times"
told=$(paged start-stop-daemon --start --chuid nobody --pidfile "$SCRATCH/daemon.pid" --startas "$(readlink -f "$PYTHON")" -- -c "$work") ||
    fail "start-stop-daemon fails"
[[ $told == "$nobody 49" ]] || fail "a daemon of another user says '$told'"
told=$(paged runuser -u nobody -- sh -c 'for n in 1 2 3; do "$0" -c "$1"; done' "$PYTHON" "$work" | sort -u) ||
    fail "children of another user's shell fail"
[[ $told == "$nobody 49" ]] || fail "children of another user's shell say '$told'"
[[ $can_page -ne 0 || $(ordinary_lines) -eq 1 ]] || fail "ordinary memory is reported $(ordinary_lines) times"
ok "children of other users work, and ordinary memory is reported once"

# case: sandbox
gcc -Wall -O1 "$E2E/sandbox.c" -o "$SCRATCH/sandbox" || fail "sandbox cannot be built"
told=$(paged "$SCRATCH/sandbox" "$PYTHON" -c "$work") || fail "a program in a sandbox fails"
[[ $told == "0 49" ]] || fail "a program in a sandbox says '$told'"
[[ $(ordinary_lines) -eq 1 ]] || fail "ordinary memory is reported $(ordinary_lines) times"
ok "a program in a sandbox without memfd_create and userfaultfd works"
