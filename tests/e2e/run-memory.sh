#!/usr/bin/env bash
#
# `everbyte run` and unmapped memory: it is inaccessible, and new memory holds zeroes.
#
# usage: run-memory.sh

source "$(dirname "$0")/lib.sh"
need gcc
LIBRARY=$(dirname "$EVERBYTE")/libeverbyte_preload.so
if [[ ! -e ${EVERBYTE_PRELOAD:-$LIBRARY} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-preload) || fail "the build failed"
fi
POOL=$FAST/memory.pool
USE=$SCRATCH/memory_use
gcc -Wall -Werror -O1 -pthread "$E2E/memory_use.c" -o "$USE" || fail "memory_use cannot be built"
"$EVERBYTE" pool create "$POOL" --size 640M >/dev/null
"$EVERBYTE" volume create "$POOL" more --kind swap --size 200M >/dev/null

# paged DRAM COMMAND...: the command by `everbyte run`, with statistics in run.log. The status is the command's.
paged() {
    local dram=$1
    shift
    timeout 120 "$EVERBYTE" run --dram "$dram" --stats --pool "$POOL/more" -- "$@" 2>"$SCRATCH/run.log"
}
log() { cat "$SCRATCH/run.log"; }

# case: unmapped
told=$(paged 8M "$USE" unmapped) || fail "unmapped memory goes wrong: $(log)"
[[ $told == good ]] || fail "unmapped memory says '$told': $(log)"
told=$(paged 8M "$USE" unmapped_in_turns) || fail "loads from unmapped memory go wrong: $(log)"
[[ $told == good ]] || fail "loads from unmapped memory say '$told': $(log)"
ok "unmapped memory is inaccessible, and new memory holds zeroes"
