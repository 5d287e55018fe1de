#!/usr/bin/env bash
# demo.sh - what `make demo` shows once haggle is built: train the built-in model on the built-in data.
set -eu
cd "$(dirname "$0")/.."
haggle=${HAGGLE:-build/haggle}
[ -x "$haggle" ] || {
    echo "demo.sh: $haggle is not built yet: run 'make'" >&2
    exit 1
}
exec "$haggle" train recipes/demo.yaml "$@"
