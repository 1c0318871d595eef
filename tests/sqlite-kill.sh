#!/usr/bin/env bash
#
# kill -9 under SQLite: `sqlite-kill.sh [ROUNDS]` lets a child commit transactions through
# everbyte-sqlite, in every journal mode by turns, kills it, and judges what is there.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export EVERBYTE_SQLITE_KILL_ROUNDS=${1:-200}
cargo test --quiet --release -p everbyte-sqlite --test kill
echo "ok - SQLite's transactions after $EVERBYTE_SQLITE_KILL_ROUNDS kills"
