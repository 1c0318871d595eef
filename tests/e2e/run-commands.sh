#!/usr/bin/env bash
#
# Commands of Debian's required, important and standard packages start under `everbyte run`: each says the same
# with --version or --help as without.
#
# usage: run-commands.sh [COUNT]: at most so many commands, evenly chosen; else all

source "$(dirname "$0")/lib.sh"
need dpkg-query dpkg
LIBRARY=$(dirname "$EVERBYTE")/libeverbyte_preload.so
if [[ ! -e ${EVERBYTE_PRELOAD:-$LIBRARY} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-preload) || fail "the build failed"
fi
COUNT=${1:-0}
LEAST=150

# commands: the programs of these packages, without shells' scripts, links and programs that cannot be preloaded.
commands() {
    local package file
    for package in $(dpkg-query -W -f '${Priority} ${binary:Package}\n' | awk '/^(required|important|standard) / {print $2}'); do
        for file in $(dpkg -L "$package" | grep -E '^(/usr)?/s?bin/[^/]+$'); do
            [[ -f $file && -x $file && ! -L $file && ! -u $file && ! -g $file ]] || continue
            [[ $(head -c 4 "$file" | tr -d '\0') == $'\x7fELF' ]] && ldd "$file" &>/dev/null && echo "$file"
        done
    done | sort -u
}

# These act without looking at an option, or wait for a terminal.
unfit='/(agetty|getty|init|telinit|halt|poweroff|reboot|shutdown|runlevel|sulogin|login|nologin|false|true|yes|telnet|nano|vi|vim.*|dmsetup|resolvconf)$'

# outcome OUT COMMAND...: the output and the status.
outcome() {
    local out=$1 status=0
    shift
    timeout -k 2 20 "$@" >"$out" 2>"$out.errors" </dev/null || status=$?
    echo "status $status" >>"$out"
}

mapfile -t all < <(commands | grep -vE "$unfit")
[[ ${#all[@]} -ge $LEAST ]] || fail "there are ${#all[@]} commands, not $LEAST"
every=1
if [[ $COUNT -gt 0 ]]; then every=$(((${#all[@]} + COUNT - 1) / COUNT)); fi
tried=0
for ((at = 0; at < ${#all[@]}; at += every)); do
    command=${all[at]}
    for option in --version --help; do
        outcome "$SCRATCH/expected" "$command" "$option"
        outcome "$SCRATCH/actual" "$EVERBYTE" run --dram 16M -- "$command" "$option"
        if ! cmp -s "$SCRATCH/expected" "$SCRATCH/actual"; then
            # Some outputs have a time or a process number.
            outcome "$SCRATCH/again" "$command" "$option"
            cmp -s "$SCRATCH/expected" "$SCRATCH/again" || continue
            diff "$SCRATCH/expected" "$SCRATCH/actual" >&2 || true
            tail -n 3 "$SCRATCH/actual.errors" >&2
            fail "$command $option says something else"
        fi
    done
    tried=$((tried + 1))
done
[[ $COUNT -gt 0 || $tried -ge $LEAST ]] || fail "only $tried commands were tried"
ok "$tried commands start and say the same"
