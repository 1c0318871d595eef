#!/usr/bin/env bash
#
# What others ask of a file system, on a mount: the POSIX suite pjdfstest and the exerciser fsx, both
# from crates.io. Needs root.
#
# usage: posix.sh FSX_OPERATIONS
#
# pjdfstest skips what needs a read-only remount or a second file system. Its enametoolong_path tests
# are left out where they fail on any file system: for some lengths of the directory's path their own
# arithmetic overflows ("capacity overflow").

source "$(dirname "$0")/lib.sh"
need fusermount3 umount cargo

OPERATIONS=${1:?usage: posix.sh FSX_OPERATIONS}
[[ $EUID -eq 0 ]] || fail "pjdfstest must be run as root"
TOOLS=${CARGO_TARGET_DIR:-$TOP/target}/tools
cargo install --quiet --locked --root "$TOOLS" pjdfstest@0.2.0 fsx@0.3.0 ||
    fail "pjdfstest and fsx cannot be installed"

POOL=$FAST/files.pool
MOUNT=$FAST/m
mkdir "$MOUNT"
on_exit unmount "$MOUNT"
"$EVERBYTE" pool create "$POOL" --size 448M >/dev/null
"$EVERBYTE" volume create "$POOL" files --kind fs --size 384M >/dev/null
SERVER_OUT=$SCRATCH/server.out
SERVER_LOG=$SCRATCH/server.log
"$EVERBYTE" mount "$POOL/files" "$MOUNT" --allow-other >"$SERVER_OUT" 2>"$SERVER_LOG" &
SERVER_PID=$!
on_exit end_process "$SERVER_PID"
within 20 grep -q '^ready: ' "$SERVER_OUT" || fail "the file system was not mounted after 20 s"

for seed in 1 $RANDOM $RANDOM; do
    "$TOOLS/bin/fsx" -q -N "$OPERATIONS" -S "$seed" -P "$SCRATCH" "$MOUNT/fsx" \
        >"$SCRATCH/fsx.log" 2>&1 || {
        tail -n 40 "$SCRATCH/fsx.log" >&2
        fail "fsx fails with seed $seed"
    }
    rm "$MOUNT/fsx"
done
ok "fsx: three times $OPERATIONS operations"

cat >"$SCRATCH/pjdfstest.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.001
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
mkdir -m 755 "$MOUNT/suite"
chmod 755 "$FAST"
(cd "$MOUNT" && "$TOOLS/bin/pjdfstest" -c "$SCRATCH/pjdfstest.toml" -p "$MOUNT/suite") \
    >"$SCRATCH/pjdfstest.log" 2>&1 || true
FAILED=$(sed -n 's/^\([a-z_:]*\) *FAILED$/\1/p' "$SCRATCH/pjdfstest.log" | grep -v 'enametoolong_path$' || true)
[[ -z $FAILED ]] || fail "pjdfstest: $FAILED"
SUMMARY=$(grep '^Summary: ' "$SCRATCH/pjdfstest.log") || fail "pjdfstest did not end"
PASSED=$(sed 's/.* \([0-9]*\) passed.*/\1/' <<<"$SUMMARY")
[[ $PASSED -ge 300 ]] || fail "pjdfstest: $SUMMARY"
rm -rf "$MOUNT/suite"
stop_server
"$EVERBYTE" pool check "$POOL" >/dev/null || fail "the pool is not sound"
ok "pjdfstest: ${SUMMARY#Summary: }"
