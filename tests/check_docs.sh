#!/usr/bin/env bash
# check_docs.sh - the pages generated from tables in the code are current: docs/knobs.md, docs/ops.md.
#
#   check_docs.sh HAGGLE [ROOT]   HAGGLE is the built program; exit 77 (skipped) when there is none
#   check_docs.sh --self-test
set -u

PAGES="knobs ops"

check() { # check HAGGLE ROOT
    local haggle=$1 root=$2 page rc=0 text
    if [ ! -x "$haggle" ]; then
        echo "skipped: $haggle is not built"
        return 77
    fi
    for page in $PAGES; do
        if ! text=$("$haggle" docs "$page"); then
            echo "'haggle docs $page' failed"
            rc=1
        elif [ ! -f "$root/docs/$page.md" ]; then
            echo "docs/$page.md is missing: run 'make docs'"
            rc=1
        elif ! diff -u "$root/docs/$page.md" - <<<"$text" >&2; then
            echo "docs/$page.md is not current: run 'make docs'"
            rc=1
        fi
    done
    return $rc
}

self_test() {
    local tree rc=0 page
    tree=$(mktemp -d) || exit 1
    trap 'rm -rf "$tree"' EXIT
    expect() { # expect CODE WHAT [HAGGLE]
        local got=0
        check "${3:-$tree/haggle}" "$tree" >/dev/null 2>&1 || got=$?
        [ $got -eq "$1" ] || { echo "self-test: $2: expected $1, got $got"; rc=1; }
    }
    mkdir "$tree/docs"
    printf '#!/bin/sh\n[ "$1" = docs ] || exit 2\nprintf "# %%s\\n\\n| a |\\n" "$2"\n' >"$tree/haggle"
    chmod +x "$tree/haggle"
    for page in $PAGES; do "$tree/haggle" docs "$page" >"$tree/docs/$page.md"; done
    expect 0 "current pages"
    expect 77 "no program" "$tree/nothing"
    echo "| b |" >>"$tree/docs/knobs.md"
    expect 1 "a page that was edited"
    "$tree/haggle" docs knobs >"$tree/docs/knobs.md"
    rm "$tree/docs/ops.md"
    expect 1 "a page that is missing"
    "$tree/haggle" docs ops >"$tree/docs/ops.md"
    printf '#!/bin/sh\nexit 3\n' >"$tree/haggle"
    expect 1 "a program that fails"
    [ $rc -eq 0 ] && echo "self-test: passed"
    exit $rc
}

[ "${1-}" = --self-test ] && self_test
if [ $# -lt 1 ]; then
    echo "usage: check_docs.sh HAGGLE [ROOT]" >&2
    exit 2
fi
check "$1" "${2:-$(dirname "$0")/..}"
