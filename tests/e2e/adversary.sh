#!/usr/bin/env bash
#
# Root's commands next to an unprivileged user who replaces files under them, and with a server that lies:
# see adversary.py. ROUNDS of swapped files, links and directories are the first argument.

source "$(dirname "$0")/lib.sh"
need "$PYTHON"

root env "EVERBYTE=$EVERBYTE" "$PYTHON" "$E2E/adversary.py" --rounds "${1:-200}"
