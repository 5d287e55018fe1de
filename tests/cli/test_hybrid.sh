#!/usr/bin/env bash
# test_hybrid.sh - a hybrid run from outside: answers on standard output and on a socket, hostile and vanished clients,
# many of them, stops, and the bulk's losses to the bit.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
python3 "$source_tree/tests/cli/hybrid_client.py" "$haggle" || failures=$((failures + 1))
finish
