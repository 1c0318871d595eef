#!/usr/bin/env bash
#
# The command line: pools and volumes made, grown, resized and deleted, served or not; and everything
# that must be refused with an error that names what is wrong, and leave the pool unharmed.

source "$(dirname "$0")/lib.sh"
need nbdinfo qemu-io "$PYTHON"

POOL=$FAST/pool
MIB=1048576

is_clean_pool() { "$EVERBYTE" pool check "$1" >/dev/null || fail "the pool is not clean"; }
volume_names() { "$EVERBYTE" volume list "$POOL" --json | json_get '" ".join(v["name"] for v in (d["volumes"] if isinstance(d, dict) else d))'; }

# write_pattern URI PATTERN OFFSET LENGTH
write_pattern() { qemu-io -f raw -c "write -P $2 $3 $4" -c flush "$1" >/dev/null || fail "write of $3+$4 failed"; }
# reads_pattern URI PATTERN OFFSET LENGTH
reads_pattern() {
    qemu-io -r -f raw -c "read -P $2 $3 $4" "$1" >"$SCRATCH/pattern.out" 2>&1 &&
        ! grep -qi 'verification failed' "$SCRATCH/pattern.out" ||
        fail "$3+$4 does not hold pattern $2"
}

# case: usage-errors
usage_errors() {
    refused 2 'usage' "$EVERBYTE"
    refused 2 'usage' "$EVERBYTE" pool
    refused 2 'frobnicate' "$EVERBYTE" frobnicate
    refused 1 'size' "$EVERBYTE" pool create "$FAST/none"
    refused 2 'banana' "$EVERBYTE" pool create "$FAST/none" --size banana
    refused 1 'there is no pool' "$EVERBYTE" serve "$FAST/none"
    refused 2 'carrier' "$EVERBYTE" serve "$FAST/none" --nbd carrier:pigeon
    [[ ! -e $FAST/none ]] || fail "a refused command left a file"
    ok "bad usage: status 2 and a message"
}

# case: pools-and-volumes
pools_and_volumes() {
    "$EVERBYTE" pool create "$POOL" --size 64M >/dev/null
    [[ $(stat -c %s "$POOL") -eq $((64 * MIB)) ]] || fail "the pool file has a wrong size"
    [[ $(($(stat -c '%b * %B' "$POOL"))) -ge $((64 * MIB)) ]] || fail "the pool file is sparse"
    refused 1 'exists' "$EVERBYTE" pool create "$POOL" --size 64M
    refused 1 'small|least' "$EVERBYTE" pool create "$FAST/tiny" --size 4K
    "$EVERBYTE" volume create "$POOL" a --size 16M >/dev/null
    "$EVERBYTE" volume create "$POOL" b --size 100M -o delta=off,log-size=4M,threshold=25 >/dev/null
    [[ $(volume_names) == "a b" ]] || fail "volumes: $(volume_names)"
    refused 1 'a' "$EVERBYTE" volume create "$POOL" a --size 16M
    refused 1 'name' "$EVERBYTE" volume create "$POOL" 'a/b' --size 16M
    refused 1 'nothere' "$EVERBYTE" volume delete "$POOL" nothere
    refused 1 'nothere' "$EVERBYTE" serve "$POOL/nothere" --nbd "unix:$SOCKET"
    refused 1 'no pool' "$EVERBYTE" pool info "$FAST/none"
    "$EVERBYTE" volume resize "$POOL" a --size 24M >/dev/null
    "$EVERBYTE" volume delete "$POOL" b >/dev/null
    [[ $(volume_names) == "a" ]] || fail "volumes: $(volume_names)"
    is_clean_pool "$POOL"
    ok "pools and volumes without a server"
}

# case: served-pool
served_pool() {
    start_server "$POOL" a
    refused 1 "$SERVER_PID" "$EVERBYTE" serve "$POOL" --nbd "unix:$SCRATCH/second.socket"
    grep -qF "$URI" "$SCRATCH/refused.err" ||
        fail "the second opener is not told how to reach the server"
    ok "a second opener is told who serves the pool and where"

    "$EVERBYTE" volume create "$POOL" c --size 8M >/dev/null
    local uri_c="nbd+unix:///c?socket=$SOCKET"
    [[ $(nbdinfo --size "$uri_c") -eq $((8 * MIB)) ]] || fail "the new volume is not exported"
    write_pattern "$uri_c" 7 0 8M
    "$EVERBYTE" volume resize "$POOL" c --size 12M >/dev/null
    [[ $(nbdinfo --size "$uri_c") -eq $((12 * MIB)) ]] || fail "the resize is not seen"
    reads_pattern "$uri_c" 7 0 8M
    reads_pattern "$uri_c" 0 8M 4M
    write_pattern "$URI" 8 0 4M
    "$EVERBYTE" volume delete "$POOL" c >/dev/null
    ! nbdinfo --size "$uri_c" >/dev/null 2>&1 || fail "the deleted volume is still exported"
    reads_pattern "$URI" 8 0 4M
    [[ $("$EVERBYTE" pool info "$POOL" --json | json_get 'd["serving"]["pid"]') == "$SERVER_PID" ]] ||
        fail "pool info does not say who serves the pool"
    is_clean_pool "$POOL"
    ok "volumes made, resized and deleted while another is served"

    "$EVERBYTE" pool grow "$POOL" --size 96M >/dev/null
    [[ $(stat -c %s "$POOL") -eq $((96 * MIB)) ]] || fail "the file did not grow"
    refused 1 'shrink|small|grow' "$EVERBYTE" pool grow "$POOL" --size 32M
    "$EVERBYTE" volume create "$POOL" d --size 64M >/dev/null
    write_pattern "nbd+unix:///d?socket=$SOCKET" 9 0 48M
    stop_server
    [[ $("$EVERBYTE" pool info "$POOL" --json | json_get 'd["clean"]') == True ]] ||
        fail "SIGTERM did not leave the clean mark"
    is_clean_pool "$POOL"
    "$EVERBYTE" pool grow "$POOL" --size 112M >/dev/null
    start_server "$POOL" d
    reads_pattern "$URI" 9 0 48M
    stop_server
    is_clean_pool "$POOL"
    ok "grown while served and while not; SIGTERM leaves the clean mark"
}

# case: sockets
sockets() {
    start_server "$POOL" a
    kill_server
    [[ -S $SOCKET ]] || fail "kill -9 was expected to leave the socket"
    [[ $("$EVERBYTE" pool info "$POOL" --json | json_get 'd["clean"]') == False ]] ||
        fail "a pool whose server was killed is called clean"
    start_server "$POOL" a
    nbdinfo --size "$URI" >/dev/null || fail "the stale socket was not replaced"
    reads_pattern "$URI" 8 0 4M
    new_pool "$FAST/other" 32M x 8M
    refused 1 "$SOCKET" "$EVERBYTE" serve "$FAST/other" --nbd "unix:$SOCKET"
    nbdinfo --size "$URI" >/dev/null || fail "a live socket was taken over"
    stop_server
    echo precious >"$SCRATCH/file"
    refused 1 "$SCRATCH/file" "$EVERBYTE" serve "$FAST/other" --nbd "unix:$SCRATCH/file"
    [[ $(cat "$SCRATCH/file") == precious ]] || fail "a file that is no socket was replaced"
    ok "stale sockets are replaced, live ones and other files are not"

    start_server "$POOL/a" a --read-only
    nbdinfo --json "$URI" | grep -q '"is_read_only": true' || fail "not read-only"
    reads_pattern "$URI" 8 0 4M
    "$PYTHON" - "$URI" <<'END' || fail "a read-only export took a write"
import errno, sys, nbd
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(sys.argv[1])
for call in (lambda: h.pwrite(bytes(512), 0), lambda: h.trim(4096, 0), lambda: h.zero(4096, 0)):
    try:
        call()
        raise SystemExit("no error")
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error
END
    ! nbdinfo --size "nbd+unix:///d?socket=$SOCKET" >/dev/null 2>&1 ||
        fail "POOL/VOLUME serves other volumes too"
    stop_server
    ok "one volume, read-only"
}

# case: full-pool
full_pool() {
    new_pool "$FAST/full" 48M thin 256M -o log-size=4M
    start_server "$FAST/full" thin
    "$PYTHON" - "$URI" <<'END' || fail "the full pool did not behave"
import errno, sys, nbd

MIB = 1 << 20
h = nbd.NBD()
h.connect_uri(sys.argv[1])


def fill(pattern, offsets):
    written = []
    for offset in offsets:
        try:
            h.pwrite(bytes([pattern]) * MIB, offset)
            written.append(offset)
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, error
            return written, offset
    raise SystemExit("the pool never ran out")


written, refused = fill(1, range(0, 256 * MIB, MIB))
assert len(written) > 20, f"only {len(written)} MiB fitted"
assert h.pread(MIB, refused) == bytes(MIB), "a refused write left something"
h.flush()
for offset in written:
    h.pwrite(b"\2" * MIB, offset)
h.flush()
for offset in written:
    h.pwrite(b"\3" * 512, offset + 1024, nbd.CMD_FLAG_FUA)
for offset in written:
    block = h.pread(MIB, offset)
    assert block == b"\2" * 1024 + b"\3" * 512 + b"\2" * (MIB - 1536), f"{offset} is torn"
for offset in written[10:]:
    h.trim(MIB, offset)
h.flush()
again, _ = fill(4, range(128 * MIB, 256 * MIB, MIB))
assert len(again) >= len(written) - 12, f"only {len(again)} MiB came back"
assert h.pread(MIB, written[0])[:1024] == b"\2" * 1024
h.flush()
END
    "$EVERBYTE" pool check "$FAST/full" >/dev/null || fail "the full pool is not clean while served"
    kill_server
    start_server "$FAST/full" thin
    reads_pattern "$URI" 2 0 1024
    reads_pattern "$URI" 4 128M 1M
    stop_server
    is_clean_pool "$FAST/full"
    ok "a full pool: ENOSPC, nothing torn, overwrites succeed, discards give space back"

    start_server "$FAST/full" thin
    "$EVERBYTE" pool grow "$FAST/full" --size 64M >/dev/null
    write_pattern "$URI" 5 200M 8M
    stop_server
    is_clean_pool "$FAST/full"
    rm -f "$FAST/full"
    ok "a full pool takes writes again once it has grown"
}

# patch FILE COPY FIELD_OFFSET HEX: changes a superblock copy and puts its checksum right.
patch() {
    "$PYTHON" - "$@" <<'END'
import sys

path, copy, at, new = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4])
CRC_AT = 132


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


with open(path, "r+b") as pool:
    pool.seek(copy * 4096)
    block = bytearray(pool.read(CRC_AT + 4))
    was = int.from_bytes(block[CRC_AT:], "little")
    assert was == crc32c(block[:CRC_AT]), "the superblock is not laid out as this script thinks"
    block[at : at + len(new)] = new
    block[CRC_AT:] = crc32c(block[:CRC_AT]).to_bytes(4, "little")
    pool.seek(copy * 4096)
    pool.write(block)
END
}

damage() { printf 'damage' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }

# case: damaged-pools
damaged_pools() {
    local good=$FAST/good bad=$FAST/bad
    new_pool "$good" 32M v 8M
    start_server "$good" v
    write_pattern "$URI" 6 0 8M
    stop_server

    cp "$good" "$bad"
    damage "$bad" 40
    start_server "$bad" v
    reads_pattern "$URI" 6 0 8M
    stop_server
    damage "$bad" 4136
    start_server "$bad" v
    reads_pattern "$URI" 6 0 8M
    stop_server
    is_clean_pool "$bad"
    ok "either superblock alone is enough, and the other is repaired"

    cp "$good" "$bad"
    damage "$bad" 40
    damage "$bad" 4136
    refused 1 'superblock' "$EVERBYTE" serve "$bad" --nbd "unix:$SOCKET"
    refused 1 'superblock' "$EVERBYTE" pool info "$bad"
    refused 1 '' "$EVERBYTE" pool check "$bad"
    grep -q 'problem: superblock at' "$SCRATCH/refused.out" || fail "pool check finds no problem"
    head -c 32M /dev/urandom >"$bad"
    refused 1 'pool|superblock' "$EVERBYTE" pool info "$bad"
    : >"$bad"
    refused 1 'has 0 bytes' "$EVERBYTE" pool info "$bad"
    ok "no superblock, no pool: a clear error"

    cp "$good" "$bad"
    patch "$bad" 0 32 0000000000000080
    patch "$bad" 1 32 0000000000000080
    refused 1 'feature' "$EVERBYTE" serve "$bad" --nbd "unix:$SOCKET"
    cp "$good" "$bad"
    patch "$bad" 0 8 09000000
    patch "$bad" 1 8 09000000
    refused 1 'version' "$EVERBYTE" serve "$bad" --nbd "unix:$SOCKET"
    cp "$good" "$bad"
    patch "$bad" 0 24 0000000000000080
    patch "$bad" 1 24 0000000000000080
    start_server "$bad" v
    reads_pattern "$URI" 6 0 8M
    nbdinfo --json "$URI" | grep -q '"is_read_only": true' ||
        fail "a pool with unknown ro-compat features must be served read-only"
    stop_server
    ok "unknown features and versions are refused, ro-compat ones served read-only"

    cp "$good" "$bad"
    truncate -s 16M "$bad"
    refused 1 'size|truncated|bytes' "$EVERBYTE" serve "$bad" --nbd "unix:$SOCKET"
    cp "$good" "$bad"
    truncate -s -4096 "$bad"
    refused 1 'size|truncated|bytes' "$EVERBYTE" serve "$bad" --nbd "unix:$SOCKET"
    cmp -n $((32 * MIB - 4096)) "$good" "$bad" || fail "a refused pool was changed"
    truncate -s +4096 "$bad"
    cp "$good" "$bad"
    start_server "$bad" v
    reads_pattern "$URI" 6 0 8M
    stop_server
    ok "a pool file of a wrong size is refused and not touched"
}

usage_errors
pools_and_volumes
served_pool
sockets
full_pool
damaged_pools
