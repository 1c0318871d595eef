#!/usr/bin/env bash
#
# Unmodified programs of Debian's by `everbyte run` at half of the memory that they take: each must say what it
# says without, and servers must have every value that clients stored. With `short` only a compiler of C, on
# something small; the others need redis-server, redis-tools, memcached, rustc and hpcc.
#
# usage: programs.sh short|full

source "$(dirname "$0")/lib.sh"
LENGTH=${1:?usage: programs.sh short|full}
need gcc sort sqlite3 "$PYTHON"
LIBRARY=$(dirname "$EVERBYTE")/libeverbyte_preload.so
if [[ ! -e ${EVERBYTE_PRELOAD:-$LIBRARY} ]]; then
    (cd "$TOP" && cargo build --quiet --release -p everbyte-preload) || fail "the build failed"
fi
POOL=$FAST/programs.pool
"$EVERBYTE" pool create "$POOL" --size 1300M >/dev/null
"$EVERBYTE" volume create "$POOL" more --kind swap --size 1200M >/dev/null
# Programs that use the pool in turns find somebody who has it.
start_bare_server "$POOL"

# half LABEL COMMAND...: see half.py.
half() {
    "$PYTHON" "$E2E/half.py" "$POOL/more" "$@" </dev/null || fail "$1"
}

# functions COUNT LANGUAGE: a program of many functions that call each other.
functions() {
    "$PYTHON" - "$@" <<'CODE'
import sys
count, language = int(sys.argv[1]), sys.argv[2]
c = "unsigned f{0}(unsigned x) {{ for (unsigned n = 0; n < x % {1}; n++) x = x * {2} ^ f{3}(n) % ({4} + n); return x; }}"
rust = ("pub fn f{0}(mut x: u32) -> u32 {{ for n in 0..x % {1} {{ "
        "x = x.wrapping_mul({2}) ^ f{3}(n) % ({4} + n); }} x }}")
print("unsigned f0(unsigned x) { return x; }" if language == "c" else "pub fn f0(x: u32) -> u32 { x }")
for at in range(1, count):
    line = c if language == "c" else rust
    print(line.format(at, at % 17 + 2, at * 2 + 1, max(0, at // 2), at % 911 + 1))
print("int main(void) { return f%d(7) & 0; }" % (count - 1) if language == "c" else
      "fn main() { std::process::exit((f%d(7) & 0) as i32) }" % (count - 1))
CODE
}

short=2500
[[ $LENGTH == short ]] || short=6000
functions "$short" c >"$SCRATCH/many.c"
half "gcc -O2 on $short functions" sh -c "gcc -O2 -S -o - '$SCRATCH/many.c' | sha256sum"
if [[ $LENGTH == full ]]; then
    need redis-server redis-benchmark memcached hpcc /usr/bin/rustc
    functions 12000 rust >"$SCRATCH/many.rs"
    half "rustc -O on 12000 functions" \
        sh -c "/usr/bin/rustc -O --emit asm -o '$SCRATCH/many.s' '$SCRATCH/many.rs' && sha256sum <'$SCRATCH/many.s'"
    half "python3 sorting a list" "$PYTHON" -c '
import hashlib, random
random.seed(1)
numbers = sorted(random.random() for _ in range(4_000_000))
print(hashlib.sha256(b"".join(b"%r" % number for number in numbers)).hexdigest())'
    seq 1 4000000 | awk '{print ($1*7919)%10000019, $1}' >"$SCRATCH/lines"
    half "GNU sort" sort -S 256M --parallel=2 -n "$SCRATCH/lines"
    half "sqlite3 in memory" sqlite3 :memory: 'create table t(a integer, b text);
        with recursive c(x) as (select 1 union all select x+1 from c where x<1500000)
            insert into t select x*7919%3000007, "row number "||x||" with some text" from c;
        create index i on t(a); create index j on t(b);
        select count(*), sum(a), max(b) from t; select a, b from t order by b desc limit 3;'
    mkdir "$SCRATCH/hpcc"
    sed -e '6s/1000/4000/' -e '11s/2/1/;12s/2/1/' /usr/share/doc/hpcc/examples/_hpccinf.txt \
        >"$SCRATCH/hpcc/hpccinf.txt"
    # Its own verdict on each part; and how far its transforms are from what they should be, to a digit.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    half "hpcc with its FFT" sh -c "cd '$SCRATCH/hpcc' && rm -f hpccoutf.txt && hpcc &&
        grep -E '^(Success|MPIFFT_N|MPIFFT_maxErr|FFT_N|MPIRandomAccess_Errors)=' hpccoutf.txt"
    for server in redis-server memcached; do
        "$PYTHON" "$E2E/loaded.py" "$server" "$POOL/more" 100000 20 || fail "$server"
    done
fi
lent=$("$EVERBYTE" volume list "$POOL" --json | json_get 'sum(v["swap"]["lent_bytes"] for v in d["volumes"])')
[[ $lent -eq 0 ]] || fail "$lent bytes are lent although every program has ended"
stop_server
