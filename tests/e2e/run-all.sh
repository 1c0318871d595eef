#!/usr/bin/env bash
#
# Runs every end-to-end script and ends with a line "N passed, M failed": N checks that held,
# M scripts that did not come to their end. CRASH_LEDGER_ROUNDS and CRASH_FS_ROUNDS set how often
# servers are killed.

set -uo pipefail
cd "$(dirname "$0")" || exit 1
export EVERBYTE_E2E_RUN=${EVERBYTE_E2E_RUN:-$$}

LEDGER_ROUNDS=${CRASH_LEDGER_ROUNDS:-30}
TIGHT_ROUNDS=${CRASH_TIGHT_ROUNDS:-8}
FS_ROUNDS=${CRASH_FS_ROUNDS:-12}
if [[ -z ${EVERBYTE:-} ]]; then
    (cd ../.. && cargo build --quiet --release -p everbyte) || exit 1
    EVERBYTE=$(cd ../.. && pwd)/target/release/everbyte
    [[ -z ${CARGO_TARGET_DIR:-} ]] || EVERBYTE=$CARGO_TARGET_DIR/release/everbyte
fi
export EVERBYTE

PASSED=0
FAILED=()
CHILD=
OUTPUT=$(mktemp)
finish() {
    trap - EXIT
    if [[ -n $CHILD ]] && kill "$CHILD" 2>/dev/null; then wait "$CHILD"; fi
    ./sweep.sh "$EVERBYTE_E2E_RUN"
    rm -f "$OUTPUT"
}
trap finish EXIT
trap 'exit 143' HUP INT TERM

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

run cli.sh
run clients.sh
run filesystems.sh
run crash-ledger.py "$LEDGER_ROUNDS" --plant all
run crash-ledger.py "$TIGHT_ROUNDS" --tight
run crash-fs.sh "$FS_ROUNDS"
run open-time.sh

[[ ${#FAILED[@]} -eq 0 ]] || printf '\nfailed: %s\n' "${FAILED[*]}"
printf '\n%s passed, %s failed\n' "$PASSED" "${#FAILED[@]}"
[[ ${#FAILED[@]} -eq 0 && $PASSED -gt 0 ]]
