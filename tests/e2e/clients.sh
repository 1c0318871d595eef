#!/usr/bin/env bash
#
# The clients people use, none of them ours: libnbd's tools, QEMU's tools, fio; and a client that
# breaks the rules on purpose.

source "$(dirname "$0")/lib.sh"
need nbdinfo nbdcopy qemu-img qemu-io fio "$PYTHON" cmp

POOL=$FAST/pool
IMAGE=$SCRATCH/image
MIB=1048576

# qio COMMAND...: runs qemu-io commands on $URI; every one must succeed.
qio() {
    local commands=() command
    for command in "$@"; do commands+=(-c "$command"); done
    qemu-io -f raw --discard=unmap "${commands[@]}" "$URI" >"$SCRATCH/qio.out" 2>&1 ||
        fail "qemu-io failed: $(tail -n 3 "$SCRATCH/qio.out")"
    ! grep -Eqi 'fail|error|invalid' "$SCRATCH/qio.out" ||
        fail "qemu-io: $(grep -Ei 'fail|error|invalid' "$SCRATCH/qio.out" | head -n 3)"
}

# case: listing-and-info
listing_and_info() {
    local info flag list
    list=$(nbdinfo --list --json "nbd+unix://?socket=$SOCKET")
    for name in one two; do
        [[ $list == *"\"export-name\": \"$name\""* ]] || fail "$name is not listed"
    done
    [[ $(nbdinfo --size "$URI") -eq $((64 * MIB)) ]] || fail "nbdinfo sees a wrong size"
    info=$(nbdinfo --json "$URI")
    for flag in can_flush can_fua can_multi_conn can_trim can_zero can_fast_zero can_df can_cache; do
        [[ $info == *"\"$flag\": true"* ]] || fail "nbdinfo: $flag is not true"
    done
    [[ $info == *'"is_read_only": false'* ]] || fail "nbdinfo: read-only"
    [[ $info == *'base:allocation'* ]] || fail "nbdinfo: no base:allocation"
    ok "nbdinfo: list, size, flags, contexts"
}

# has_data BYTES: so many bytes of $URI are data.
has_data() {
    local found
    found=$(data_bytes "$URI") || fail "there is no map"
    [[ $found -eq $1 ]]
}

# case: allocation-map
allocation_map() {
    qio 'write -P 1 1M 1M' 'write -P 2 8M 64k'
    has_data $((MIB + 65536)) || fail "the map has $(data_bytes "$URI") bytes of data"
    qio 'discard 0 64M'
    has_data 0 || fail "the map has data after a discard of everything"
    ok "nbdinfo --map: holes before, between and after data"
}

# case: copies
copies() {
    head -c $((24 * MIB)) /dev/urandom >"$IMAGE"
    truncate -s $((64 * MIB)) "$IMAGE"
    nbdcopy --flush "$IMAGE" "$URI" || fail "nbdcopy in failed"
    nbdcopy "$URI" "$SCRATCH/back" || fail "nbdcopy out failed"
    cmp "$IMAGE" "$SCRATCH/back" || fail "nbdcopy does not bring back what it took there"
    has_data $((24 * MIB)) || fail "nbdcopy's zeroes take space"
    nbdcopy "$URI" "$URI_TWO" || fail "nbdcopy between two volumes failed"
    nbdcopy "$URI_TWO" - | cmp - "$IMAGE" || fail "the copy of the copy differs"
    ok "nbdcopy: there, back, from volume to volume"
}

# case: qemu-images
qemu_images() {
    qemu-img convert -n -f raw -O raw "$IMAGE" "$URI" || fail "qemu-img convert failed"
    qemu-img compare -f raw -F raw "$IMAGE" "$URI" >/dev/null || fail "qemu-img compare differs"
    qemu-img convert -f raw -O qcow2 "$URI_TWO" "$SCRATCH/image.qcow2" ||
        fail "qemu-img convert from us failed"
    qio 'discard 0 64M'
    qemu-img convert -n -f qcow2 -O raw "$SCRATCH/image.qcow2" "$URI" ||
        fail "qemu-img convert of qcow2 failed"
    qemu-img compare -f qcow2 -F raw "$SCRATCH/image.qcow2" "$URI" >/dev/null ||
        fail "qemu-img compare with qcow2 differs"
    ok "qemu-img: convert and compare, raw and qcow2"
}

# case: qemu-io
qemu_io() {
    qio 'write -f -P 17 0 4k' 'write -f -P 18 64k 64k' 'write -P 19 1000k 3k' 'flush' \
        'read -P 17 0 4k' 'read -P 18 64k 64k' 'read -P 19 1000k 3k'
    qio 'write -P 20 2M 2M' 'write -z 2M 1M' 'write -z -u 3M 512k' 'discard 3584k 512k' \
        'read -P 0 2M 2M' 'write -f -z 512 512' 'read -P 17 0 512' 'read -P 0 512 512' \
        'read -P 17 1024 3072'
    qio 'aio_write -P 21 10M 1M' 'aio_write -P 22 11M 1M' 'aio_flush' \
        'read -P 21 10M 1M' 'read -P 22 11M 1M'
    kill_server
    start_server "$POOL" one
    qio 'read -P 0 512 512' 'read -P 17 0 512' 'read -P 18 64k 64k' 'read -P 21 10M 1M'
    ok "qemu-io: patterns, FUA, zeroes with and without holes, discard, flush; there after kill -9"
}

# case: fio-verified
fio_verified() {
    local shape
    for shape in 512:8m 4k:48m 20k:48m 256k:48m; do
        fio --name=verified --ioengine=nbd --uri="$URI" --rw=randrw --bs="${shape%:*}" \
            --size="${shape#*:}" --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 \
            --verify_state_save=0 --fsync=64 --randseed=7 --output="$SCRATCH/fio.out" ||
            fail "fio: $(tail -n 5 "$SCRATCH/fio.out")"
        ! grep -q 'err=[^ ]*[1-9]' "$SCRATCH/fio.out" || fail "fio: $(grep err= "$SCRATCH/fio.out")"
    done
    ok "fio: random reads and writes of four sizes, 16 deep, checksums verified"
}

# case: rule-breaker
rule_breaker() {
    "$PYTHON" - "$URI" <<'END' || fail "the client that breaks the rules was not answered as it should be"
import errno
import sys

import nbd


def connect():
    handle = nbd.NBD()
    handle.set_strict_mode(0)
    handle.connect_uri(sys.argv[1])
    return handle


def expect(number, what, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, f"{what}: {error.errno} instead of {errno.errorcode[number]}"
    else:
        raise AssertionError(f"{what}: no error")


h = connect()
size = h.get_size()
h.pwrite(b"abc", 4095)
assert h.pread(5, 4094)[1:4] == b"abc", "unaligned bytes"
expect(errno.ENOSPC, "write past the end", lambda: h.pwrite(bytes(4096), size))
expect(errno.ENOSPC, "write across the end", lambda: h.pwrite(bytes(4096), size - 512))
expect(errno.EINVAL, "read past the end", lambda: h.pread(512, size))
expect(errno.EINVAL, "read across the end", lambda: h.pread(4096, size - 512))
expect(errno.EINVAL, "trim past the end", lambda: h.trim(4096, size))
expect(errno.ENOSPC, "zero past the end", lambda: h.zero(4096, size))
expect(errno.EINVAL, "offset that wraps", lambda: h.pread(4096, (1 << 64) - 512))
expect(errno.EINVAL, "unknown flag on a read", lambda: h.pread(512, 0, 1 << 14))
assert h.pread(512, size - 512) == bytes(512), "the last sector is untouched"

# A request too large for any server costs the client its connection at most.
try:
    connect().pread(1 << 26, 0)
except nbd.Error:
    pass

survivor = connect()
survivor.pwrite(b"alive", 0, nbd.CMD_FLAG_FUA)
assert survivor.pread(5, 0) == b"alive"
assert h.pread(5, 0) == b"alive", "two connections see one volume"
h.shutdown()
survivor.shutdown()
END
    ! process_is_gone "$SERVER_PID" || fail "the server died of an illegal request"
    ok "illegal requests: the right errors, and the server lives"
}

# case: garbage
garbage() {
    "$PYTHON" - "$SOCKET" <<'END' || fail "garbage was not survived"
import random
import socket
import struct
import sys


def connect():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(sys.argv[1])
    assert s.recv(18, socket.MSG_WAITALL)[:16] == b"NBDMAGICIHAVEOPT"
    return s


rng = random.Random(3)
for attempt in range(40):
    s = connect()
    try:
        if attempt % 4 == 0:
            s.sendall(rng.randbytes(rng.randrange(1, 5000)))
        elif attempt % 4 == 1:
            s.sendall(struct.pack(">I", 0xFFFFFFFF))
        elif attempt % 4 == 2:
            s.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 7, 0xFFFFFFF0))
        else:
            s.sendall(struct.pack(">I8sII", 3, b"IHAVEOPT", 1, 3) + b"one" + rng.randbytes(500))
        s.shutdown(socket.SHUT_WR)
        while s.recv(65536):
            pass
    except (ConnectionError, BrokenPipeError):
        pass
    s.close()
END
    nbdinfo --size "$URI" >/dev/null || fail "the server does not answer after garbage"
    ok "garbage: each client loses its own connection only"
}

"$EVERBYTE" pool create "$POOL" --size 192M >/dev/null
"$EVERBYTE" volume create "$POOL" one --size 64M >/dev/null
"$EVERBYTE" volume create "$POOL" two --size 64M -o delta=on >/dev/null
start_server "$POOL" one
within 20 is_ready two || fail "the second volume was not ready"
URI_TWO=$(ready_uri two)
listing_and_info
allocation_map
copies
qemu_images
qemu_io
fio_verified
rule_breaker
garbage
stop_server

"$EVERBYTE" serve "$POOL/one" --nbd tcp:127.0.0.1:0 >"$SCRATCH/tcp.out" 2>&1 &
SERVER_PID=$!
on_exit end_process "$SERVER_PID"
within 20 grep -q '^ready: ' "$SCRATCH/tcp.out" || fail "no server on TCP"
URI=$(sed -n 's/^ready: //p' "$SCRATCH/tcp.out")
[[ $URI == nbd://127.0.0.1:*/one ]] || fail "strange address on TCP: $URI"
[[ $(nbdinfo --size "$URI") -eq $((64 * MIB)) ]] || fail "nbdinfo over TCP failed"
qio 'write -P 30 5M 1M' 'read -P 30 5M 1M'
stop_server
ok "TCP on loopback"

"$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not clean"
ok "the pool is clean after all clients"
