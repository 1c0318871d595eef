#!/usr/bin/env bash
#
# `everbyte run`: unmodified programs at half their footprint have the right results, a program that uses
# its heap in every way finds every byte, and kill -9 of programs and servers in turns leaves a pool that
# is clean, with nothing lent and nothing lost: neither runs, nor what was flushed to a block volume, a cache
# and a file system of the same pool, which are written to meanwhile and compared after every kill.
#
# usage: run.sh ROUNDS

source "$(dirname "$0")/lib.sh"
need gcc sort sqlite3 fusermount3 umount "$PYTHON"

ROUNDS=${1:?usage: run.sh ROUNDS}
LIBRARY=$(dirname "$EVERBYTE")/libeverbyte_preload.so
if [[ ! -e ${EVERBYTE_PRELOAD:-$LIBRARY} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-preload) || fail "the build failed"
fi
POOL=$FAST/run.pool
STRESS=$SCRATCH/heap_stress
gcc -Wall -O1 -pthread "$E2E/heap_stress.c" -o "$STRESS" || fail "heap_stress cannot be built"
"$EVERBYTE" pool create "$POOL" --size 960M >/dev/null
"$EVERBYTE" volume create "$POOL" more --kind swap --size 640M >/dev/null
"$EVERBYTE" volume create "$POOL" disk --size 16M >/dev/null

# paged DRAM [--bss] [--strict] COMMAND...: the command by `everbyte run`, quiet about itself.
paged() {
    local options=(--dram "$1")
    shift
    while [[ $1 == --bss || $1 == --strict ]]; do
        options+=("$1")
        shift
    done
    "$EVERBYTE" run "${options[@]}" --pool "$POOL/more" -- "$@" 2>"$SCRATCH/run.log" || {
        cat "$SCRATCH/run.log" >&2
        return 1
    }
}

# same DRAM NAME COMMAND...: the command says the same with and without.
same() {
    local dram=$1 name=$2 expected actual
    shift 2
    expected=$("$@" <"$SCRATCH/input") || fail "$name fails by itself"
    actual=$(paged "$dram" "$@" <"$SCRATCH/input") || fail "$name fails with $dram of DRAM"
    [[ $actual == "$expected" && -n $actual ]] || fail "$name says something else with $dram of DRAM"
    ok "$name has the right result with $dram of DRAM"
}

# lent: bytes of the volume that programs have.
lent() {
    "$EVERBYTE" volume list "$POOL" --json | "$PYTHON" -c '
import json, sys
print(next(v for v in json.load(sys.stdin)["volumes"] if v["name"] == "more")["swap"]["lent_bytes"])'
}

nothing_is_lent() {
    local bytes
    bytes=$(lent) && [[ $bytes -eq 0 ]]
}
something_is_lent() {
    local bytes
    bytes=$(lent) && [[ $bytes -gt 0 ]]
}

seq 1 300000 | awk '{print ($1*7919)%1000003, $1}' >"$SCRATCH/input"
cat >"$SCRATCH/sort.py" <<'END'
import hashlib, random
random.seed(1)
numbers = [random.random() for _ in range(400_000)]
numbers.sort()
print(hashlib.sha256(repr(numbers).encode()).hexdigest())
END
cat >"$SCRATCH/fork.py" <<'END'
import multiprocessing, os, subprocess
words = [str(i) * 3 for i in range(200_000)]
def total(part): return sum(map(len, words[part::4]))
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(total, range(4)))
pid = os.fork()
if pid == 0:
    os._exit(0 if sum(map(total, range(4))) == sum(map(len, words)) else 1)
print(os.waitpid(pid, 0)[1], subprocess.check_output(["sh", "-c", "echo $((1 + 2))"]))
END
{
    echo 'create table t(a integer, b text);'
    echo 'with recursive c(x) as (select 1 union all select x+1 from c where x<200000)
        insert into t select x*7919%300007, "row number "||x||" with some text" from c;'
    echo 'create index i on t(a); select count(*), sum(a), max(b) from t;
        select a, b from t order by b desc limit 3;'
} >"$SCRATCH/queries.sql"

# case: results
same 24M "GNU sort" sort -S 48M --parallel=2 -n
same 16M "python3 sorting a list" "$PYTHON" "$SCRATCH/sort.py"
same 20M "python3 with forks" "$PYTHON" "$SCRATCH/fork.py"
same 10M "sqlite3 in memory" sqlite3 :memory: ".read $SCRATCH/queries.sql"
# case: heap
[[ $(paged 24M "$STRESS" 80 2 4) == good ]] || fail "a byte of the heap was wrong"
ok "a heap holds every byte, through system calls, forks and exec"
gcc -Wall -O1 -pthread "$E2E/own_allocator.c" -o "$SCRATCH/own" || fail "own_allocator cannot be built"
[[ $(paged 16M timeout 60 "$SCRATCH/own" 80) == good ]] || fail "an own allocator has wrong bytes"
ok "a program with an allocator of its own pages by its mappings"
# case: vfork
gcc -Wall -O1 -pthread "$E2E/vfork_killed.c" -o "$SCRATCH/vfork" || fail "vfork_killed cannot be built"
[[ $(paged 24M timeout 120 "$SCRATCH/vfork" 60 60) == good ]] || fail "a killed child of vfork left its parent's memory changed"
ok "a child of vfork that is killed while it allocates leaves no lock and no mark behind"
# case: rare-uses
gcc -Wall -O1 -pthread "$E2E/heap_corners.c" -o "$SCRATCH/corners" || fail "heap_corners cannot be built"
for corner in small_aligned large_aligned forks fork_handlers signals locks locks_elsewhere locks_of_longer free_of_locked protected access_rights fixed cancellation; do
    [[ $(paged 16M timeout 60 "$SCRATCH/corners" "$corner") == good ]] || fail "$corner goes wrong"
done
# Where the variables are differs from run to run.
for nth in 1 2 3 4; do
    [[ $(paged 16M --bss timeout 60 "$SCRATCH/corners" variable_in_part) == good ]] ||
        fail "a variable that is in the heap in part goes wrong in run $nth"
done
ok "rare uses of the heap, of mappings and of forks go as they do without"
# case: out-of-space
[[ $(paged 16M --strict timeout 60 "$SCRATCH/corners" fragmented) == good ]] || fail "a heap in pieces goes wrong"
grep -q "no more memory for this program: its heap's addresses" "$SCRATCH/run.log" ||
    fail "nobody says that the heap has no free place: $(cat "$SCRATCH/run.log")"
ok "a program whose heap has room in pieces alone is told"
told=$("$EVERBYTE" run --dram 16M --stats --child-stats --pool "$POOL/more" -- timeout 60 "$SCRATCH/corners" beyond 2>"$SCRATCH/run.log") ||
    fail "a program that asks for more than there is fails: $(cat "$SCRATCH/run.log")"
borrowed=$(sed -n 's/.* slots [0-9]* of \([0-9]*\) MiB, .*/\1/p' "$SCRATCH/run.log" | sort -n | tail -n 1)
[[ $told == good && -n $borrowed && $borrowed -lt 128 ]] ||
    fail "a program that is refused memory keeps ${borrowed:-no} MiB of the volume: $(cat "$SCRATCH/run.log")"
ok "a program that asks for more than there will ever be takes nothing from others"
# case: reports
for corner in told_meanwhile unheard; do
    told=$("$EVERBYTE" run --dram 16M --stats --child-stats --pool "$POOL/more" -- timeout 60 "$SCRATCH/corners" "$corner" 2>"$SCRATCH/run.log") &&
        [[ $told == good ]] || fail "$corner goes wrong: $(cat "$SCRATCH/run.log")"
done
ok "what is told, or cannot be, holds up no child that was forked meanwhile, and ends no program"
# case: fork
gcc -Wall -O1 -shared -fPIC "$E2E/early_fork.c" -o "$SCRATCH/early.so" || fail "early_fork cannot be built"
told=$(LD_PRELOAD="${EVERBYTE_PRELOAD:-$LIBRARY} $SCRATCH/early.so" "$SCRATCH/corners" forks 2>"$SCRATCH/run.log") ||
    fail "a program with the library and without settings cannot fork: $(cat "$SCRATCH/run.log")"
[[ $told == good ]] && grep -q "early: good" "$SCRATCH/run.log" || fail "a fork before the library has begun goes wrong"
ok "a program with the library and without settings forks, and so does one that has not begun"
[[ $(LD_PRELOAD=$SCRATCH/early.so paged 16M timeout 60 "$SCRATCH/corners" fork_handlers) == good ]] ||
    fail "a lock that is held across forks, and was so before the library began, goes wrong"
ok "a lock that is held across forks and while memory is mapped locks nobody out"
# case: bss
gcc -Wall -O1 "$E2E/static_array.c" -o "$SCRATCH/static" || fail "static_array cannot be built"
gcc -Wall -O1 -no-pie "$E2E/static_array.c" -o "$SCRATCH/static_no_pie" || fail "static_array cannot be built"
for program in static static_no_pie; do
    [[ $(paged 32M --bss "$SCRATCH/$program" 40) == good ]] || fail "a static array has wrong bytes"
    if paged 32M "$SCRATCH/$program" 40 2>"$SCRATCH/static.log"; then
        fail "a static array pages although nobody asked"
    fi
    grep -q "MiB are in DRAM" "$SCRATCH/static.log" || fail "$program fails without --bss"
done
ok "a static array pages at half its footprint on request, with system calls and forks"
nothing_is_lent || fail "runs are lent although every program has ended"
# case: closed-descriptors
gcc -Wall -O1 "$E2E/close_all.c" -o "$SCRATCH/close_all" || fail "close_all cannot be built"
told=$("$EVERBYTE" run --dram 16M -- timeout 60 "$SCRATCH/close_all" "$SCRATCH/pattern" 2>"$SCRATCH/run.log") ||
    fail "a program that closes all descriptors loses bytes: $(cat "$SCRATCH/run.log")"
[[ $told == good ]] || fail "a program that closes all descriptors says $told"
[[ $(grep -c "paging has failed: the region's userfaultfd was closed" "$SCRATCH/run.log") -eq 1 ]] ||
    fail "nobody says that paging has failed: $(cat "$SCRATCH/run.log")"
ok "a program that closes every descriptor has its heap grow in memory, and its files as they were"

status=0
"$EVERBYTE" run --dram 16M --pool "$POOL" -- sh -c 'exit 7' 2>/dev/null || status=$?
[[ $status -eq 7 ]] || fail "exit status $status instead of 7"
ok "the exit status is the program's"

# not_run WORDS COMMAND...: it fails and says so.
not_run() {
    local words=$1
    shift
    if "$EVERBYTE" run "$@" >"$SCRATCH/run.log" 2>&1; then fail "$* was not refused"; fi
    grep -q "$words" "$SCRATCH/run.log" || fail "$* does not say: $words"
}
# case: refusals
not_run "of the kind block" --dram 16M --pool "$POOL/disk" -- true
not_run "there is no volume" --dram 16M --pool "$POOL/none" -- true
not_run "too low" --dram 16K --pool "$POOL" -- true
not_run "a region cannot have" --dram 18446744073709551615 --pool "$POOL" -- true
not_run "there is no program" --dram 16M --pool "$POOL" -- no-such-program
gcc -Wall -static -x c - -o "$SCRATCH/linked" <<<'int main(void) { return 0; }' || fail "nothing can be linked statically"
not_run "statically linked" --dram 16M --pool "$POOL" -- "$SCRATCH/linked"
if [[ $EUID -eq 0 ]]; then
    install -o nobody -m 4755 "$(type -P true)" "$SCRATCH/setuid"
    not_run "runs as another user" --dram 16M --pool "$POOL" -- "$SCRATCH/setuid"
    if [[ $(cat /proc/sys/vm/unprivileged_userfaultfd) -eq 0 ]] && install -d -m 755 "$SCRATCH/open" &&
        cp "$EVERBYTE" "${EVERBYTE_PRELOAD:-$LIBRARY}" "$SCRATCH/open" && chmod 755 "$SCRATCH"; then
        if setpriv --reuid nobody --clear-groups env -u EVERBYTE_PRELOAD "$SCRATCH/open/${EVERBYTE##*/}" \
            run --dram 16M -- true >"$SCRATCH/run.log" 2>&1; then
            fail "a heap without the right to userfaultfd"
        fi
        grep -q "vm.unprivileged_userfaultfd is 0" "$SCRATCH/run.log" ||
            fail "nobody says what forbids userfaultfd: $(cat "$SCRATCH/run.log")"
        install -m 755 "$(type -P true)" "$SCRATCH/open/capable"
        # CAP_NET_RAW, permitted and effective.
        "$PYTHON" -c 'import os, struct, sys
os.setxattr(sys.argv[1], "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))' \
            "$SCRATCH/open/capable" || fail "no file capabilities there"
        if setpriv --reuid nobody --clear-groups env -u EVERBYTE_PRELOAD "$SCRATCH/open/${EVERBYTE##*/}" \
            run --dram 16M -- "$SCRATCH/open/capable" >"$SCRATCH/run.log" 2>&1; then
            fail "a program with file capabilities runs without paging"
        fi
        grep -q "has file capabilities" "$SCRATCH/run.log" ||
            fail "nobody says that a program has file capabilities: $(cat "$SCRATCH/run.log")"
    fi
fi
start_bare_server "$POOL" --read-only
not_run "the pool is served read-only" --dram 1M --pool "$POOL/more" -- "$PYTHON" -c 'bytes(64 << 20)'
stop_server
ok "what cannot be run is refused in words"

# case: limits
# A program that lowers its own limits, or locks more than its limit has: told, and otherwise as before.
for limits in "AS, (400 << 20, 400 << 20)" "NOFILE, (3, 3)"; do
    told=$(paged 16M "$PYTHON" -c "import resource
resource.setrlimit(resource.RLIMIT_$limits)
parts = []
try:
    for n in range(200): parts.append(bytes([n]) * (1 << 20))
except MemoryError:
    print(len(parts), all(part[7] == n for n, part in enumerate(parts)))") || fail "$limits ends a program"
    [[ $told == *True ]] || fail "a program with limits of its own ($limits) says $told"
    grep -q "no more memory for this program: " "$SCRATCH/run.log" || fail "nobody says that $limits are in the way"
done
told=$(paged 16M "$PYTHON" -c 'import ctypes, mmap
memory = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
print(*[ctypes.CDLL(None).mlock(at, ctypes.c_size_t(mib << 20)) for mib in (16, 16, 8)])') || fail "mlock ends a program"
[[ $told == "-1 -1 0" ]] || fail "mlock beyond and within the limit says $told"
[[ $(grep -c "mlock fails: 16777216 bytes would be pinned; the DRAM limit allows" "$SCRATCH/run.log") -eq 1 ]] ||
    fail "nobody says why mlock fails: $(cat "$SCRATCH/run.log")"
ok "a program that changes its limits, or locks too much, is told"

# case: statistics
# The statistics at the end of a run.
"$EVERBYTE" run --dram 16M --stats --wear --pool "$POOL/more" -- "$PYTHON" "$SCRATCH/sort.py" \
    >"$SCRATCH/paged.out" 2>"$SCRATCH/run.log" || fail "python3 fails in a region"
"$PYTHON" "$SCRATCH/sort.py" >"$SCRATCH/sort.out" || fail "python3 fails by itself"
cmp "$SCRATCH/sort.out" "$SCRATCH/paged.out" || fail "paging changes a result"
for words in "DRAM [0-9]* of 16 MiB, slots [0-9]* of [0-9]* MiB, in [0-9]* MiB, out [0-9]* MiB, faults [0-9]* load" \
    "memory that bears 10^8 writes lasts [0-9.]* years" "slots were written, [0-9.]* times in the mean of all"; do
    grep -q "$words" "$SCRATCH/run.log" || fail "statistics do not say: $words"
done
ok "statistics and wear are reported"

# case: full-volume
# A full volume: the program is told, by malloc, and by a line.
"$EVERBYTE" volume resize "$POOL" more --size 64M >/dev/null
if paged 16M "$PYTHON" -c 'x = [b"x" * (1 << 20) for _ in range(300)]' 2>"$SCRATCH/full.log"; then
    fail "300 MiB fit in 80 MiB"
fi
grep -q "no more memory for this program: .* more exceed the [0-9]* MiB of its DRAM and slots" "$SCRATCH/full.log" ||
    fail "nobody says that the volume is full"
grep -q MemoryError "$SCRATCH/full.log" || fail "python3 was not told"
if paged 16M --strict "$PYTHON" -c 'x = [bytes(1 << 20) for _ in range(300)]' 2>"$SCRATCH/full.log"; then
    fail "300 MiB fit in 80 MiB with strict accounting"
fi
grep -q "no more memory for this program: all 32 runs" "$SCRATCH/full.log" ||
    fail "nobody says that the volume is full with strict accounting"
"$EVERBYTE" volume resize "$POOL" more --size 640M >/dev/null
ok "a full volume is told to the program and to its user"

# case: lost-server
# A server that has gone for good: a program waits for the next one once, not each time that it asks.
start_server "$POOL" disk
told=$(paged 16M timeout 35 "$PYTHON" -c 'import os, signal, sys
os.kill(int(sys.argv[1]), signal.SIGKILL)
refused = 0
for _ in range(6):
    try:
        bytearray(256 << 20)
    except MemoryError:
        refused += 1
print(refused)' "$SERVER_PID") || fail "a program whose server has gone hangs: $(cat "$SCRATCH/run.log")"
wait "$SERVER_PID" 2>/dev/null || true
[[ $told -eq 6 ]] || fail "a program whose server has gone was refused $told of 6 times"
ok "a program whose server has gone is told so, without waiting each time"

# case: kills
# kill -9 in turns: the program, the server, both. A program beside it checks its bytes all the time, and
# three others write to the pool's other volumes.
BYTES=$((16 << 20))
truncate -s "$BYTES" "$SCRATCH/cached.img"
"$EVERBYTE" volume create "$POOL" cached --kind cache --backing "$SCRATCH/cached.img" --scm 8M >/dev/null
"$EVERBYTE" volume create "$POOL" files --kind fs --size 96M >/dev/null
declare -A PROMISE=([disk]=requests [cached]=pages) WRITERS=() CHECKED=([disk]=0 [cached]=0 [files]=0)
# What the judge of each says if it finds something wrong.
declare -A FAULT=([disk]=" faults:" [cached]=" faults:" [files]="is not what was synced")
MOUNT=$SCRATCH/mount
mkdir "$MOUNT"
on_exit unmount "$MOUNT"
: >"$SCRATCH/files.ledger"

uri() { printf 'nbd+unix:///%s?socket=%s' "$1" "$SOCKET"; }

start_all() {
    start_server "$POOL" disk
    within 20 is_ready cached || fail "the cache was not ready"
    "$EVERBYTE" mount "$POOL/files" "$MOUNT" >"$SCRATCH/mount.out" 2>"$SCRATCH/mount.log" &
    MOUNT_PID=$!
    on_exit end_process "$MOUNT_PID"
    within 20 grep -q '^ready: ' "$SCRATCH/mount.out" || fail "not mounted: $(cat "$SCRATCH/mount.log")"
}

# start_writer NAME COMMAND...: it says "writing" once it does.
start_writer() {
    "${@:2}" >"$SCRATCH/$1.out" 2>"$SCRATCH/$1.log" &
    WRITERS[$1]=$!
    on_exit end_process "$!"
}

start_writers() {
    local volume
    for volume in "${!PROMISE[@]}"; do
        start_writer "$volume" "$E2E/ledger_writer.py" write "$(uri "$volume")" "$SCRATCH/$volume.ledger" \
            "$BYTES"
    done
    start_writer files "$PYTHON" "$E2E/fsync_writer.py" write "$MOUNT" "$SCRATCH/files.ledger"
    for volume in "${!PROMISE[@]}"; do
        within 20 grep -q writing "$SCRATCH/$volume.out" || fail "nothing writes to $volume"
    done
}

# writers_work: none has ended, and fsync has acknowledged something.
writers_work() {
    local volume
    within 20 has_acknowledged "$SCRATCH/files.ledger" || fail "round $round: no fsync was acknowledged"
    for volume in "${!WRITERS[@]}"; do
        ! process_is_gone "${WRITERS[$volume]}" ||
            fail "round $round: the writer to $volume ended before it was to: $(tail -n 3 "$SCRATCH/$volume.log")"
    done
}

# tell_writers: ends those whose server lives on. The one on the mount is killed, the others end by themselves.
tell_writers() {
    local volume
    for volume in "${!PROMISE[@]}"; do kill "${WRITERS[$volume]}"; done
    end_process "${WRITERS[files]}" 2>/dev/null || true
    unset "WRITERS[files]"
}

# wait_for_writers: they end, and have met nothing but that.
wait_for_writers() {
    local volume
    for volume in "${!WRITERS[@]}"; do
        within 20 process_is_gone "${WRITERS[$volume]}" || fail "the writer to $volume hangs"
        wait "${WRITERS[$volume]}" || fail "round $round: the writer to $volume: $(tail -n 3 "$SCRATCH/$volume.log")"
    done
    WRITERS=()
}

# durable_in VOLUME: compares it with what its writer was promised, and prints of how much that was.
durable_in() {
    case $1 in
    files) "$PYTHON" "$E2E/fsync_writer.py" verify "$MOUNT" "$SCRATCH/files.ledger" ;;
    *) "$E2E/ledger_writer.py" verify "$(uri "$1")" "$SCRATCH/$1.ledger" "${PROMISE[$1]}" ;;
    esac
}

nothing_is_lost() {
    local volume found
    for volume in "${!CHECKED[@]}"; do
        found=$(durable_in "$volume") || fail "round $round: $volume lost what was durable"
        CHECKED[$volume]=$((CHECKED[$volume] + found))
    done
}

# Changes a byte behind each writer's back.
change_all() {
    local volume
    for volume in "${!PROMISE[@]}"; do
        "$PYTHON" -c 'import nbd, sys
disk = nbd.NBD()
disk.connect_uri(sys.argv[1])
disk.pwrite(bytes([disk.pread(1, 5000)[0] ^ 1]), 5000)
disk.shutdown()' "$(uri "$volume")"
    done
    printf x >>"$(find "$MOUNT" -type f ! -name '*.new' | head -n 1)"
}

PROGRAMS=()
start_program() {
    EVERBYTE_LOG=$SCRATCH/program.$1.log
    "$EVERBYTE" run --dram 16M --pool "$POOL/more" -- "$STRESS" 60 2 "$2" \
        >"$EVERBYTE_LOG" 2>&1 &
    PROGRAMS+=("$!")
    on_exit end_process "$!"
}
for ((round = 0; round < ROUNDS; round++)); do
    start_all
    start_writers
    PROGRAMS=()
    start_program bystander 3
    start_program victim 30
    within 10 something_is_lent || fail "nothing was lent"
    sleep 0.7
    writers_work
    for process in "$SERVER_PID" "$MOUNT_PID" "${PROGRAMS[1]}"; do
        ! process_is_gone "$process" || fail "round $round: the server, the mount or the victim ended before the kill"
    done
    case $((round % 3)) in
    0) kill -9 "${PROGRAMS[1]}" ;;
    1) kill -9 "$SERVER_PID" ;;
    2) kill -9 "$SERVER_PID" "${PROGRAMS[1]}" ;;
    esac
    if ((round % 3 > 0)); then
        wait "$SERVER_PID" 2>/dev/null || true
        within 20 process_is_gone "$MOUNT_PID" || fail "round $round: the mount outlives its server"
        wait_for_writers
        start_all
    else
        tell_writers
        wait_for_writers
    fi
    nothing_is_lost
    wait "${PROGRAMS[0]}" || fail "round $round: the bystander failed: $(cat "$SCRATCH/program.bystander.log")"
    grep -q good "$SCRATCH/program.bystander.log" || fail "round $round: the bystander says nothing"
    end_process "${PROGRAMS[1]}" 2>/dev/null || true
    within 10 nothing_is_lent || fail "round $round: $(lent) bytes are still lent"
    unmount "$MOUNT"
    stop_server
    "$EVERBYTE" pool check "$POOL" >/dev/null || fail "round $round: the pool is not clean"
done
for volume in "${!CHECKED[@]}"; do
    ((ROUNDS < 3 || CHECKED[$volume] > 0)) || fail "nothing that was written to $volume was durable"
done
start_all
change_all
for volume in "${!CHECKED[@]}"; do
    if durable_in "$volume" >"$SCRATCH/judged" 2>&1; then fail "a changed byte of $volume is not noticed"; fi
    grep -q "${FAULT[$volume]}" "$SCRATCH/judged" ||
        fail "the judge of $volume does not come to its end: $(tail -n 3 "$SCRATCH/judged")"
done
unmount "$MOUNT"
stop_server
"$EVERBYTE" volume resize "$POOL" more --size 2M >/dev/null || fail "runs were lost"
"$EVERBYTE" volume resize "$POOL" more --size 640M >/dev/null || fail "runs were lost"
ok "$ROUNDS rounds of kill -9 of programs and servers leave nothing lent and nothing lost: checked were" \
    "${CHECKED[disk]} durable requests to a block volume, ${CHECKED[cached]} to a cache," \
    "${CHECKED[files]} acknowledged files"
