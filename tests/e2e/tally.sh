# shellcheck shell=bash
#
# What scripts that run other test scripts share: each runs to its end, the program under test is
# built once, nothing is left behind, and the last line is "N passed, M failed": N checks that held
# (lines that begin with "ok - "), M scripts that did not come to their end.

set -uo pipefail
E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export EVERBYTE_E2E_RUN=${EVERBYTE_E2E_RUN:-$$}
if [[ -z ${EVERBYTE:-} ]]; then
    (cd "$E2E/../.." && cargo build --quiet --release -p everbyte) || exit 1
    EVERBYTE=${CARGO_TARGET_DIR:-$E2E/../../target}/release/everbyte
fi
export EVERBYTE

PASSED=0
FAILED=()
CHILD=
OUTPUT=$(mktemp)
finish() {
    trap - EXIT
    if [[ -n $CHILD ]] && kill "$CHILD" 2>/dev/null; then wait "$CHILD"; fi
    "$E2E/sweep.sh" "$EVERBYTE_E2E_RUN"
    rm -f "$OUTPUT"
}
trap finish EXIT
trap 'exit 143' HUP INT TERM

# run SCRIPT ARGS...
run() {
    local started=$SECONDS status=0
    printf '\n== %s\n' "$*"
    "./$1" "${@:2}" > >(tee "$OUTPUT") &
    CHILD=$!
    wait "$CHILD" || status=$?
    CHILD=
    sleep 0.1
    PASSED=$((PASSED + $(grep -c '^ok - ' "$OUTPUT")))
    [[ $status -eq 0 ]] || FAILED+=("$1")
    printf '== %s: status %s, %s s\n' "$1" "$status" "$((SECONDS - started))"
}

# tally: says how it went; to be called last.
tally() {
    [[ ${#FAILED[@]} -eq 0 ]] || printf '\nfailed: %s\n' "${FAILED[*]}"
    printf '\n%s passed, %s failed\n' "$PASSED" "${#FAILED[@]}"
    [[ ${#FAILED[@]} -eq 0 && $PASSED -gt 0 ]]
}
