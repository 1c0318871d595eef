#!/usr/bin/env bash
#
# Runs every block of shell commands of README.md and docs/**/*.md, page by page, as a reader would. The marks of
# doc_commands.py name the hardware, the service or the other test of the blocks that do not run here. doc-page.sh makes
# the machine of a page: what its commands change is gone with them.
#
# usage: docs.sh [PAGE...]

source "$(dirname "$0")/lib.sh"
need unshare runuser groupadd mkfs.ext4 nbdinfo fio parallel cc "$PYTHON"

built=$(dirname "$(realpath "$EVERBYTE")")
if ! [[ -e $built/xtask && -e $built/everbyte-bench && -e $built/libeverbyte_preload.so ]]; then
    [[ $built == */release ]] || fail "$built lacks programs: run cargo build --workspace"
    (cd "$TOP" && cargo build --quiet --release -p xtask -p everbyte-bench -p everbyte-preload -p everbyte-swap-c) ||
        fail "the build failed"
fi

cd "$TOP"
pages=("$@")
[[ $# -gt 0 ]] || mapfile -t pages < <(printf '%s\n' README.md && find docs -name '*.md' | LC_ALL=C sort)
mkdir "$SCRATCH/machine"

# run_page PAGE: fails if the page has a fault or a command that fails.
run_page() {
    "$PYTHON" "$E2E/doc_commands.py" "$1" >"$SCRATCH/commands" || return
    ! grep -q '^block ' "$SCRATCH/commands" ||
        root unshare --mount --propagation private --pid --fork --kill-child \
            env EVERBYTE="$(realpath "$EVERBYTE")" "$E2E/doc-page.sh" "$SCRATCH/commands" "$SCRATCH/machine"
}

if [[ $# -eq 0 ]]; then
    faults=('```\ntrue\n```' '```bash\ntrue\n```' '<!-- needs: a disk -->\ntext\n' '```sh\ntrue\n'
        '[none](#none)' '```sh\nfalse | true\neverbyte pool info none\n```' '```sh\neverbyte serve none &\ntrue\n```')
    for fault in "${faults[@]}"; do
        printf '%b' "$fault" >"$SCRATCH/fault.md"
        ! run_page "$SCRATCH/fault.md" >/dev/null 2>&1 || fail "a page passes with: $fault"
    done
    ok "pages with faults fail"
fi

skipped=()
for page in "${pages[@]}"; do
    began=$SECONDS
    run_page "$page" || fail "$page"
    mapfile -t -O "${#skipped[@]}" skipped < <(sed -n "s/^skipped //p" "$SCRATCH/commands")
    blocks=$(grep -c '^block ' "$SCRATCH/commands") || continue
    ok "$page: $blocks blocks ran in $((SECONDS - began)) s"
done
[[ ${#skipped[@]} -eq 0 ]] || printf 'not run: %s\n' "${skipped[@]}"
