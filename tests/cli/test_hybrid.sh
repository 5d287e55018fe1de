#!/usr/bin/env bash
# test_hybrid.sh - a hybrid run through the program: answers on standard output and on a socket,
# many clients, hostile ones and ones that vanish, stops, and the bulk model's losses to the bit.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
python3 "$source_tree/tests/cli/hybrid_client.py" "$haggle" || failures=$((failures + 1))
finish
