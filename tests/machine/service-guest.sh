#!/bin/bash
#
# The checks of service.py in the guest, as a unit of its systemd. /run/share is a folder of the host.

set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
POOL=/var/lib/everbyte/pool
SOCKET=/run/everbyte/pool/nbd.socket

mkdir -p /run/share
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none share /run/share
exec >/run/share/output 2>&1

ok() { echo "ok - service: $*"; }
fail() {
    echo "FAILED - service: $*"
    systemctl --no-pager status 'everbyte*' || true
    journalctl --no-pager -u 'everbyte*' | tail -n 60
    exit 1
}
finish() {
    local status=$?
    echo "$status" >/run/share/status
    sync
    systemctl --no-block poweroff --force
}
trap finish EXIT

within() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [[ $SECONDS -lt $deadline ]] || return 1
        sleep 0.2
    done
}
property() { systemctl show -P "$1" "$2"; }
serves() { nbdinfo --size "nbd+unix:///disk?socket=$SOCKET"; }
has_file() { [[ $(cat /srv/files/name 2>/dev/null) == kept ]]; }

everbyte pool create $POOL --size 64M
everbyte volume create $POOL disk --size 8M
everbyte volume create $POOL files --kind fs --size 24M
mkdir -p /srv/files
systemctl enable everbyte@pool.service everbyte-mount@files.service
# The mount first: its unit waits for the server.
systemctl start --no-block everbyte-mount@files.service
systemctl start everbyte@pool.service || fail "the server does not start"
serves || fail "the unit is active, and the export is not usable"
[[ $(property StatusText everbyte@pool.service) == *"exports: 1"* ]] || fail "the unit has no status"
within 60 systemctl is-active everbyte-mount@files.service || fail "the mount does not start"
echo kept >/srv/files/name
everbyte fs sync $POOL/files
ok "the units start and report their status"

for ((round = 0; round < 3; round++)); do
    killed=$(property MainPID everbyte@pool.service)
    kill -9 "$killed"
    within 60 serves || fail "the server does not return"
    [[ $(property MainPID everbyte@pool.service) != "$killed" ]] || fail "the server was not killed"
    within 60 has_file || fail "the mount does not return"
done
ok "server and mount return after kill -9"

systemctl stop everbyte@pool.service
! has_file || fail "the mount outlives its server"
systemctl start everbyte@pool.service
within 60 has_file || fail "the mount does not return after a stop"
ok "the mount returns after a stop"

sed 's#/run/everbyte/pool#/run/everbyte/second#' /etc/everbyte/pool.toml >/etc/everbyte/second.toml
! systemctl start everbyte@second.service || fail "a second service has the pool"
systemctl stop everbyte@second.service
echo 'nbdd = "x"' >>/etc/everbyte/second.toml
! systemctl start everbyte@second.service || fail "a broken configuration is accepted"
[[ $(property ActiveState everbyte@second.service) == failed ]] || fail "a broken configuration is tried again"
journalctl -u everbyte@second.service | grep -q 'second.toml:[0-9]*: unknown key' || fail "the mistake is not in the log"
rm /etc/everbyte/second.toml
serves && has_file || fail "a second service disturbs the first"
ok "a second service and a broken configuration fail alone"

before=$(property MainPID everbyte@pool.service)
dpkg -i /srv/everbyte.deb >/dev/null
[[ $(property MainPID everbyte@pool.service) == "$before" ]] && has_file || fail "an upgrade disturbs the server"
ok "an upgrade leaves the server alone"

systemctl stop everbyte@pool.service
systemctl start everbyte@pool.socket
[[ $(property ActiveState everbyte@pool.service) == inactive ]] || fail "the server runs without a client"
within 60 serves || fail "a client does not start the server"
[[ $(property ActiveState everbyte@pool.service) == active ]] || fail "the socket does not start the server"
within 60 has_file || fail "the mount does not return with the socket"
ok "a client of the socket starts the server"

dpkg -P everbyte >/dev/null 2>&1 || fail "the package cannot be purged"
! has_file || fail "a purge leaves the mount"
[[ -z $(pgrep everbyte) ]] || fail "a purge leaves processes: $(pgrep -a everbyte)"
[[ -e $POOL && ! -e /etc/everbyte/pool.toml ]] || fail "a purge keeps the configuration or deletes the pool"
ok "a purge ends the services and keeps the pool"
