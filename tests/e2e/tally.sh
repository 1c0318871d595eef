# shellcheck shell=bash
#
# What scripts that run other test scripts share: each runs to its end, the program under test is
# built once, nothing is left behind, and the last line is "N passed, M failed": N checks that held
# (lines that begin with "ok - "), M scripts that did not come to their end.

set -uo pipefail
E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export EVERBYTE_E2E_RUN=${EVERBYTE_E2E_RUN:-$$}
if [[ -z ${EVERBYTE:-} ]]; then
    (cd "$E2E/../.." && cargo build --quiet --release -p everbyte-cli) || exit 1
    EVERBYTE=${CARGO_TARGET_DIR:-$E2E/../../target}/release/everbyte
fi
export EVERBYTE

LANES=${LANES:-1} # as many scripts at once
PASSED=0
FAILED=()
# By process: the script and its arguments, the file of its output, and when it began.
declare -A COMMAND=() OUTPUT=() BEGAN=()
DIR=$(mktemp -d)
finish() {
    trap - EXIT
    local child
    # Those that run: the number of one that has ended may be another's by now.
    for child in $(jobs -rp); do kill "$child" 2>/dev/null; done
    for child in "${!COMMAND[@]}"; do wait "$child"; done
    "$E2E/sweep.sh" "$EVERBYTE_E2E_RUN"
    rm -rf "$DIR"
}
trap finish EXIT
trap 'exit 143' HUP INT TERM

# reap: waits until a script has ended, prints what it said, and counts it.
reap() {
    local child status=0
    wait -n -p child || status=$?
    printf '\n== %s\n' "${COMMAND[$child]}"
    cat "${OUTPUT[$child]}"
    PASSED=$((PASSED + $(grep -c '^ok - ' "${OUTPUT[$child]}")))
    [[ $status -eq 0 ]] || FAILED+=("${COMMAND[$child]}")
    printf '== %s: status %s, %s s\n' "${COMMAND[$child]}" "$status" "$((SECONDS - BEGAN[$child]))"
    unset "COMMAND[$child]" "OUTPUT[$child]" "BEGAN[$child]"
}

# run SCRIPT ARGS...: as soon as a lane is free.
run() {
    [[ ${#COMMAND[@]} -lt $LANES ]] || reap
    local output
    output=$(mktemp -p "$DIR")
    "./$1" "${@:2}" >"$output" 2>&1 &
    COMMAND[$!]=$*
    OUTPUT[$!]=$output
    BEGAN[$!]=$SECONDS
}

# tally: waits for all, and says how it went; to be called last.
tally() {
    while [[ ${#COMMAND[@]} -gt 0 ]]; do reap; done
    [[ ${#FAILED[@]} -eq 0 ]] || printf '\nfailed: %s\n' "${FAILED[*]}"
    printf '\n%s passed, %s failed\n' "$PASSED" "${#FAILED[@]}"
    [[ ${#FAILED[@]} -eq 0 && $PASSED -gt 0 ]]
}
