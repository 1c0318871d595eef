#!/usr/bin/env bash
#
# The packages: their contents, an installation into bare Debian 12 and 13, and their services in a guest with systemd.
# Usage: tests/package.sh [--debug], with --debug for unoptimized programs. GUEST_SUITE is the guest's suite, bookworm by
# default. Needs root, mmdebstrap, lintian, systemd's tools and the tools of machine/machine.py.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C.UTF-8

ok() { printf 'ok - package: %s\n' "$*"; }
fail() {
    printf 'FAILED - package: %s\n' "$*" >&2
    exit 1
}
SCRATCH=$(mktemp -d "${TMPDIR:-/tmp}/everbyte-package.XXXXXX")
clean_up() {
    local mounted
    # A folder with a mount must not be deleted.
    for mounted in "$SCRATCH"/*/proc "$SCRATCH"/*/dev; do
        ! mountpoint -q "$mounted" || umount -R "$mounted" || return
    done
    rm -rf "$SCRATCH"
}
trap clean_up EXIT
trap 'exit 143' HUP INT TERM

umask 077 # the rights in a package must not depend on it
mapfile -t PACKAGES < <(cargo xtask deb "$@" | grep '\.deb$' | grep -v '^dpkg-deb')
[[ ${#PACKAGES[@]} -eq 2 ]] || fail "${#PACKAGES[@]} packages were built"
PROGRAM=${PACKAGES[0]} LIBRARY=${PACKAGES[1]}

# --- the archives -----------------------------------------------------------------------------

dpkg-deb --info "$PROGRAM" >/dev/null || fail "dpkg-deb does not read $PROGRAM"
lintian --allow-root --fail-on error "${PACKAGES[@]}" >&2 || fail "lintian reports errors"
ok "lintian reports no error"

umask 022
# Without -q, which would end the pipe before its writer.
dpkg-deb --contents "$PROGRAM" | grep '^drwxr-xr-x.* ./var/lib/everbyte/$' >/dev/null || fail "/var/lib/everbyte has other rights"

UNITS=$SCRATCH/units
dpkg-deb -x "$PROGRAM" "$UNITS"
for unit in "$UNITS"/usr/lib/systemd/system/*; do
    # The verification looks for the program, so it gets the program of the package.
    sed "s#/usr/bin/everbyte#$UNITS/usr/bin/everbyte#" "$unit" >"$SCRATCH/$(basename "${unit/@/@pool}")"
done
said=$(systemd-analyze verify --man=no "$SCRATCH"/*@pool.* 2>&1) || fail "systemd-analyze verify: $said"
! grep -E 'everbyte' <<<"$said" || fail "systemd-analyze verify reports a fault of a unit"
ok "systemd-analyze verify reports nothing"

exposure() { systemd-analyze security --offline=true "$SCRATCH/$1" | sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p'; }
server=$(exposure everbyte@pool.service) mount=$(exposure everbyte-mount@pool.service)
[[ -n $server && -n $mount ]] || fail "systemd-analyze security reports no level"
awk "BEGIN { exit !($server <= 3.0 && $mount <= 3.7) }" || fail "the exposure levels are $server and $mount"
ok "the exposure levels are $server (server) and $mount (mount)"

# --- bare systems -----------------------------------------------------------------------------

MIRROR=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | sed -n 1p)

# in_root SUITE COMMAND...: runs a command in the system.
in_root() {
    local root=$SCRATCH/$1
    shift
    chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}

install_into() {
    local suite=$1 root=$SCRATCH/$1 started
    # sqlite3 is the host of the extension. The finished root has no lists of packages to install it from.
    mmdebstrap --quiet --variant=apt --include=sqlite3 "$suite" "$root" "$MIRROR" || fail "mmdebstrap cannot make $suite"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --make-rslave "$root/dev"
    cp "${PACKAGES[@]}" "$root/srv"
    in_root "$suite" apt-get install -q -y --no-install-recommends "/srv/$(basename "$PROGRAM")" \
        "/srv/$(basename "$LIBRARY")" >"$SCRATCH/log" 2>&1 || fail "$suite: $(tail -n 20 "$SCRATCH/log")"
    ! in_root "$suite" which cc gcc rustc || fail "$suite has a compiler"
    started=$SECONDS
    in_root "$suite" everbyte demo >"$SCRATCH/demo" || fail "$suite: everbyte demo: $(tail -n 20 "$SCRATCH/demo")"
    ok "$suite: everbyte demo ends after $((SECONDS - started)) s without a compiler"

    in_root "$suite" sh -ec '
        test -x /usr/sbin/mount.everbyte -a -x /usr/sbin/mount.fuse.everbyte
        test -e /usr/lib/x86_64-linux-gnu/libeverbyte_region.so.0
        ldconfig -p | grep -q libeverbyte_region.so.0
        everbyte pool create /srv/p --size 64M >/dev/null
        everbyte volume create /srv/p more --kind swap --size 32M >/dev/null
        everbyte run --dram 8M --pool /srv/p/more -- /bin/true' || fail "$suite: an installed part does not work"
    in_root "$suite" everbyte volume create /srv/p data --size 16M >/dev/null
    said=$(in_root "$suite" sqlite3 -bail -cmd '.load /usr/lib/everbyte/libeverbyte_sqlite' -cmd '.open file:/srv/p/data?vfs=everbyte' \
        :memory: 'CREATE TABLE t (a); INSERT INTO t VALUES (42); SELECT a FROM t; PRAGMA integrity_check;' 2>&1) || true
    [[ $said == $'42\nok' ]] || fail "$suite: sqlite3 with the extension: $said"
    ok "$suite: sqlite3 uses a volume through the extension"
    # A changed configuration stays in an upgrade, and data stay in a purge.
    in_root "$suite" sh -ec '
        echo "# mine" >>/etc/everbyte/pool.toml; mkdir -p /var/lib/everbyte /run/everbyte; echo data >/var/lib/everbyte/pool; echo data >/run/everbyte/file
        dpkg -i /srv/everbyte_*.deb; grep -q mine /etc/everbyte/pool.toml
        ! dpkg --verify everbyte | grep -v "c /etc/everbyte/pool.toml"
        apt-get purge -y -q everbyte; test ! -e /etc/everbyte; test ! -e /usr/bin/everbyte
        grep -q data /var/lib/everbyte/pool; grep -q data /run/everbyte/file' >"$SCRATCH/log" 2>&1 || fail "$suite: $(tail -n 20 "$SCRATCH/log")"
    ok "$suite: upgrade and purge keep what belongs to users"
}

for suite in bookworm trixie; do install_into "$suite"; done

tests/machine/service.py "$PROGRAM" "${GUEST_SUITE:-bookworm}"
