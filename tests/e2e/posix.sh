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

new_files 384
mount_files --allow-other

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
(cd "$MOUNT" && "$TOOLS/bin/pjdfstest" -c "$SCRATCH/pjdfstest.toml" -p "$MOUNT/suite") \
    >"$SCRATCH/pjdfstest.log" 2>&1 || true
SUMMARY=$(grep '^Summary: ' "$SCRATCH/pjdfstest.log") || fail "pjdfstest did not end"
ALL_FAILED=$(sed -n 's/^\([a-z0-9_:]*\) *FAILED$/\1/p' "$SCRATCH/pjdfstest.log")
FAILED=$(grep -v 'enametoolong_path$' <<<"$ALL_FAILED") || true
[[ -z $FAILED ]] || fail "pjdfstest: $FAILED"
COUNT=$(sed -n 's/^Summary: \([0-9]*\) failed,.*/\1/p' <<<"$SUMMARY")
[[ -n $COUNT && $(grep -c . <<<"$ALL_FAILED") -eq $COUNT ]] ||
    fail "pjdfstest: $SUMMARY, but only these can be found: $ALL_FAILED"
PASSED=$(sed 's/.* \([0-9]*\) passed.*/\1/' <<<"$SUMMARY")
[[ $PASSED -ge 300 ]] || fail "pjdfstest: $SUMMARY"
rm -rf "$MOUNT/suite"
end_files
ok "pjdfstest: ${SUMMARY#Summary: }"
