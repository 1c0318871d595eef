#!/usr/bin/env bash
#
# `everbyte run` and the use of memory: unmapped memory is inaccessible, untouched memory takes no slots,
# and a program without slots fails at its allocation or ends with one line.
#
# usage: run-memory.sh

source "$(dirname "$0")/lib.sh"
need gcc "$PYTHON"
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
    timeout 120 "$EVERBYTE" run --dram "$dram" "${OPTIONS[@]}" --stats --pool "$POOL/more" -- "$@" 2>"$SCRATCH/run.log"
}
OPTIONS=()

# borrowed: MiB that the program had borrowed at its end.
borrowed() { sed -n 's/.* slots [0-9]* of \([0-9]*\) MiB, .*/\1/p' "$SCRATCH/run.log" | tail -n 1; }

log() { cat "$SCRATCH/run.log"; }

# case: unmapped
told=$(paged 8M "$USE" unmapped) || fail "unmapped memory goes wrong: $(log)"
[[ $told == good ]] || fail "unmapped memory says '$told': $(log)"
told=$(paged 8M "$USE" unmapped_in_turns) || fail "loads from unmapped memory go wrong: $(log)"
[[ $told == good ]] || fail "loads from unmapped memory say '$told': $(log)"
ok "unmapped memory is inaccessible, and new memory holds zeroes"

# case: small-threads
told=$(paged 16M "$USE" threads 40) || fail "40 threads go wrong: $(log)"
[[ $told == good && $(borrowed) -le 2 ]] || fail "40 threads with 100 bytes each borrow $(borrowed) MiB: $(log)"
"$EVERBYTE" volume resize "$POOL" more --size 64M --shrink >/dev/null
told=$(paged 16M "$USE" threads 1000) || fail "1,000 threads go wrong: $(log)"
[[ $told == good ]] || fail "1,000 threads say '$told': $(log)"
"$EVERBYTE" volume resize "$POOL" more --size 200M >/dev/null
ok "40 threads with little data borrow at most 2 MiB, and 1,000 threads work with 64 MiB"

# case: reserved
told=$(paged 16M "$USE" reserve 200) || fail "reserved memory goes wrong: $(log)"
[[ $told == good && $(borrowed) -le 2 ]] || fail "untouched memory borrows $(borrowed) MiB: $(log)"
ok "untouched memory takes no slots"

# case: objects
least=$((264 * 90 / 100))
for bytes in 4096 65536 524321 1048609 4194304 67108864; do
    told=$(paged 64M "$USE" fill "$bytes") || fail "objects of $bytes bytes go wrong: $(log)"
    [[ $((told >> 20)) -ge $least ]] ||
        fail "objects of $bytes bytes fill $((told >> 20)) of 264 MiB: $(log)"
    [[ $(grep -c "no more memory for this program: " "$SCRATCH/run.log") -eq 1 ]] ||
        fail "a lack of memory is not reported once: $(log)"
done
ok "objects of 4 KiB to 64 MiB fill nine tenths of the limit and the volume, and the next one fails"
told=$(paged 64M "$PYTHON" -c 'x = []
try:
    while True: x.append(b"x" * 524288)
except MemoryError:
    n = len(x); del x; print(n // 2)') || fail "python3 goes wrong without memory: $(log)"
[[ $told -ge $least ]] || fail "python3 fills $told of 264 MiB: $(log)"
ok "the error handling of python3 runs when memory ends"

told=$(paged 64M "$USE" churn 2) || fail "threads that use all memory go wrong: $(log)"
[[ $told == good ]] || fail "threads that use all memory say '$told': $(log)"
ok "threads that use all memory continue after a failed allocation"

# case: overfull
status=0
told=$(paged 16M "$USE" overfill 400) || status=$?
[[ $told == granted && $status -eq 137 ]] || fail "a touch beyond the memory says '$told', status $status: $(log)"
[[ $(grep -c "the program ends: " "$SCRATCH/run.log") -eq 1 ]] || fail "no line has the sizes: $(log)"
ok "a touch that finds no slot ends the program with one line"

# case: strict
OPTIONS=(--strict)
status=0
told=$(paged 16M "$USE" overfill 400) || status=$?
[[ -z $told && $status -eq 1 ]] || fail "strict accounting grants too much: '$told', status $status: $(log)"
told=$(paged 16M "$USE" overfill 112) || fail "strict accounting refuses memory: $(log)"
[[ $told == granted$'\n'touched ]] || fail "a touch fails with strict accounting: '$told': $(log)"
OPTIONS=()
ok "strict accounting counts at allocation, and no touch fails"

# case: not-lent
"$EVERBYTE" volume resize "$POOL" more --size 2M --shrink >/dev/null || fail "runs are lent after the end of all programs"
ok "no run is lent after the end of all programs"
