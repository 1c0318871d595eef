#!/usr/bin/env bash
#
# `everbyte run` with rare forks and mappings, children, and sanitizers: each case works, or one line refuses it.
#
# usage: run-corners.sh

source "$(dirname "$0")/lib.sh"
need bash env gcc
LIBRARY=$(dirname "$EVERBYTE")/libeverbyte_preload.so
if [[ ! -e ${EVERBYTE_PRELOAD:-$LIBRARY} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-preload) || fail "the build failed"
fi
gcc -Wall -Werror -O1 "$E2E/run_corners.c" -o "$SCRATCH/corners" || fail "run_corners cannot be built"

# paged OPTIONS... -- COMMAND...: the command by `everbyte run`.
paged() {
    timeout -k 5 90 "$EVERBYTE" run --dram 16M "$@" 2>"$SCRATCH/run.log" || {
        cat "$SCRATCH/run.log" >&2
        return 1
    }
}
# logged TEXT: the number of lines with the text.
logged() { grep -c -- "$1" "$SCRATCH/run.log" || true; }

# case: corners
for corner in raw-fork clone clone-of-child mremap-dontunmap fork-advice ring ring-over-memory; do
    told=$(paged -- "$SCRATCH/corners" "$corner") || fail "$corner fails"
    [[ $told == good ]] || fail "$corner says '$told'"
    if [[ $corner == ring-over-memory ]]; then
        [[ $(logged "mmap of a file or of shared memory over paged memory fails") -eq 1 ]] || fail "no line refuses $corner"
    fi
    told=$(paged --stats -- "$SCRATCH/corners" "$corner") || fail "$corner fails with statistics"
    [[ $told == good ]] || fail "$corner says '$told' with statistics"
    ok "$corner works"
done

# case: child-statistics
paged --stats -- bash -c '"$0" ring; true' "$SCRATCH/corners" >/dev/null || fail "a shell fails"
[[ $(logged "MiB were written to") -eq 1 ]] || fail "children write statistics unasked"
paged --stats -- env "$SCRATCH/corners" ring >/dev/null || fail "env fails"
[[ $(logged "MiB were written to") -eq 1 ]] || fail "a program after env writes no statistics"
paged --stats --child-stats -- bash -c '"$0" ring; true' "$SCRATCH/corners" >/dev/null || fail "a shell fails"
[[ $(logged "MiB were written to") -eq 2 ]] || fail "children write no statistics"
ok "children write statistics on request"

# case: sanitizers
echo 'int main(void) { return 0; }' >"$SCRATCH/empty.c"
for kind in address thread; do
    gcc -fsanitize=$kind "$SCRATCH/empty.c" -o "$SCRATCH/$kind" || fail "no compiler for the sanitizer $kind"
    if "$EVERBYTE" run --dram 16M -- "$SCRATCH/$kind" 2>"$SCRATCH/run.log"; then
        fail "a program with the sanitizer $kind starts"
    fi
    [[ $(wc -l <"$SCRATCH/run.log") -eq 1 && $(logged "is built with .*Sanitizer") -eq 1 ]] ||
        fail "no line refuses the sanitizer $kind"
done
gcc -fsanitize=undefined "$SCRATCH/empty.c" -o "$SCRATCH/undefined" || fail "no compiler for undefined behavior"
paged -- "$SCRATCH/undefined" || fail "a program with the undefined-behavior sanitizer fails"
ok "sanitizers with their own heap are refused by name"
