#!/usr/bin/env bash
#
# Each patch of mutants/ breaks one rule of the code, and one test must notice. The first lines of a patch state
# the rule. "Test:" names the test, and "Fails:", if present, a part of its message.
#
# mutants.sh [PATTERN...]  applies each patch whose name contains a PATTERN, runs its test, and requires a failure
# mutants.sh --check       checks the first lines of the patches and that they apply; runs no test
# mutants.sh --refresh     updates the patches after a change of the lines next to theirs
#
# The patches are applied in a second working tree below target/mutants, to the tracked files as they are.
# MUTANT_SECONDS bounds the time of one test.

set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
ROOT=$PWD
TREE=$ROOT/target/mutants/tree
LIMIT=${MUTANT_SECONDS:-1200}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target/mutants/build}
export CARGO_TERM_COLOR=never CARGO_PROFILE_DEV_DEBUG=0
# Each run tries the same orders and images. A test line sets other numbers.
unset EVERBYTE_SCHEDULES EVERBYTE_CRASH_SEED EVERBYTE_CRASH_CASES

PASSED=0
FAILED=()
LOG=$(mktemp)
trap 'git worktree remove --force "$TREE" 2>/dev/null; rm -f "$LOG"' EXIT
trap 'exit 143' HUP INT TERM

# line WORD PATCH: the rest of the line that begins with "WORD:", before the first file.
line() {
    sed -n "/^diff --git/q; s/^$1: //p" "$2"
}

# header PATCH: checks the first lines. Prints the fault.
header() {
    local test name
    test=$(line Test "$1")
    name=${test##*::}
    if [[ $(head -n 1 "$1") != *. ]]; then
        echo "the first line states no rule"
    elif [[ ! " $test" =~ ^\ ([A-Z_]+=[^\ ]+\ )*cargo\ test\ -p\ [a-z-]+\ --(lib|test\ [a-z]+)\ [a-z_:]+$ ]]; then
        echo "the line Test names no test"
    elif ! grep -qrF "fn $name(" crates --include='*.rs'; then
        echo "no test has the name $name"
    else
        return 0
    fi
    return 1
}

# make_tree: the second working tree, with the tracked files as they are now.
make_tree() {
    local commit
    commit=$(git -c user.name=mutants -c user.email=mutants@localhost stash create) || exit 1
    git worktree remove --force "$TREE" 2>/dev/null
    git worktree prune
    git worktree add --quiet --detach "$TREE" "${commit:-HEAD}" || exit 1
}

# is_caught PATCH: applies the patch in the tree and runs its test. Prints the reason if the test does not notice.
is_caught() {
    local words status=0 expected
    git -C "$TREE" apply "$1" || return 1
    read -ra words <<<"$(line Test "$1")"
    expected=$(line Fails "$1")
    if ! (cd "$TREE" && env "${words[@]}" --no-run) >"$LOG" 2>&1; then
        echo "it does not compile"
        return 1
    fi
    (cd "$TREE" && timeout --kill-after=10 "$LIMIT" env "${words[@]}") >"$LOG" 2>&1 || status=$?
    if [[ $status -eq 124 || $status -eq 137 ]]; then
        echo "its test does not end in $LIMIT s"
    elif [[ $status -eq 0 ]]; then
        echo "it survives: $(grep '^test result' "$LOG" | tail -n 1)"
    elif ! grep -q '^test result: FAILED' "$LOG"; then
        echo "its test does not fail but ends with status $status"
    elif ! grep -qF -- "$expected" "$LOG"; then
        echo "its test fails without the words: $expected"
    else
        return 0
    fi
    tail -n 20 "$LOG"
    return 1
}

# note PATCH FAULT: counts a patch, without a fault if the second word is empty.
note() {
    local name
    name=$(basename "$1" .patch)
    if [[ -z $2 ]]; then
        PASSED=$((PASSED + 1))
        echo "ok - mutants: $name"
    else
        FAILED+=("$name")
        printf 'FAILED %s: %s\n' "$name" "$2"
    fi
}

MODE=run
case ${1:-} in
--check | --refresh)
    MODE=${1#--}
    shift
    ;;
esac
shopt -s nullglob
PATCHES=()
for pattern in "${@:-}"; do
    found=("$ROOT"/tests/mutants/*"$pattern"*.patch)
    if [[ ${#found[@]} -eq 0 ]]; then
        echo "no patch has $pattern in its name" >&2
        exit 1
    fi
    PATCHES+=("${found[@]}")
done

[[ $MODE == check ]] || make_tree
for patch in "${PATCHES[@]}"; do
    fault=
    case $MODE in
    check)
        if fault=$(header "$patch" && git apply --check "$patch" 2>&1); then fault=; fi
        ;;
    refresh)
        # One line next to the change is enough to find its place.
        if fault=$(git -C "$TREE" apply -C1 --recount "$patch" 2>&1); then
            fault=
            sed '/^diff --git/,$d' "$patch" >"$LOG"
            git -C "$TREE" diff | sed "/^index /d" >>"$LOG"
            cat "$LOG" >"$patch"
        fi
        ;;
    run)
        if fault=$(header "$patch" && is_caught "$patch" 2>&1); then fault=; fi
        ;;
    esac
    note "$patch" "$fault"
    [[ $MODE == check ]] || git -C "$TREE" checkout --quiet --force .
done

[[ ${#FAILED[@]} -eq 0 ]] || printf 'failed: %s\n' "${FAILED[*]}"
printf '%s passed, %s failed\n' "$PASSED" "${#FAILED[@]}"
[[ ${#FAILED[@]} -eq 0 ]]
