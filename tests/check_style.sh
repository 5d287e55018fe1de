#!/usr/bin/env bash
# check_style.sh - what a reader should never meet: files over 1000 lines, notes to self, tabs, trailing blanks, and C that
# clang-format 14 (the version whose output the tree has) would write differently.
#
#   check_style.sh [ROOT]      check_style.sh --self-test
set -u

FORMATTER=${CLANG_FORMAT:-clang-format}
MAX_LINES=1000
# Spelt apart so that this file does not find itself.
NOTES='TO''DO|FIX''ME|XX''X:|HA''CK:'

files() { # files NAME-PATTERN...: regular files of the tree whose names match, NUL-separated
    local patterns=() pattern
    for pattern; do patterns+=(-o -name "$pattern"); done
    find src include tests bench scripts recipes data docs .ci CMakeLists.txt -type f \( "${patterns[@]:1}" \) -print0 2>/dev/null
}

check() { # check ROOT
    cd "$1" || return 1
    local rc=0 code=('*.[ch]' '*.def' '*.cu' '*.cuh' '*.sh' '*.py' '*.txt' '*.cmake' '*.yaml' 'run')
    report() { # report WHAT LINES
        [ -z "$2" ] && return
        echo "$1:"
        echo "$2"
        rc=1
    }
    report "longer than $MAX_LINES lines: what is the second noun?" "$(files "${code[@]}" |
        xargs -0 awk -v most=$MAX_LINES '{ n[FILENAME]++ } END { for (f in n) if (n[f] > most) print f ": " n[f] }')"
    report "notes to self" "$(files "${code[@]}" '*.md' | xargs -0 grep -nE "\\b($NOTES)" --)"
    report "tabs" "$(files "${code[@]}" | xargs -0 grep -nP '\t' --)"
    report "blanks at the end of a line" "$(files "${code[@]}" | xargs -0 grep -nE ' +$' --)"
    if "$FORMATTER" --version 2>/dev/null | grep -q 'version 14\.'; then
        report "not as clang-format writes it: run 'make format'" "$(files '*.[ch]' |
            xargs -0 -r "$FORMATTER" --dry-run -Werror 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: error: .*/\1/p' | LC_ALL=C sort -u)"
    else
        echo "clang-format 14 is not installed: formatting was not checked"
    fi
    return $rc
}

self_test() {
    local tree rc=0 style
    style=$(cd "$(dirname "$0")/.." && pwd)/.clang-format
    tree=$(mktemp -d) || exit 1
    trap 'rm -rf "$tree"' EXIT
    fresh() {
        rm -rf "${tree:?}"/*
        mkdir -p "$tree/src/base" "$tree/scripts" "$tree/docs"
        cp "$style" "$tree/.clang-format"
        printf 'int f(void);\n' >"$tree/src/base/a.c"
        printf '# page\n' >"$tree/docs/a.md"
    }
    expect() { # expect ok|bad WHAT
        local got=ok
        (check "$tree") >/dev/null || got=bad
        [ $got = "$1" ] || { echo "self-test: $2: expected $1, got $got"; rc=1; }
    }
    local note='TO''DO'
    fresh && expect ok "a tidy tree"
    fresh && seq 1000 | sed 's/.*/int a&;/' >"$tree/src/base/long.h" && expect ok "1000 lines"
    fresh && seq 1001 | sed 's/.*/int a&;/' >"$tree/src/base/long.h" && expect bad "1001 lines"
    fresh && echo "// $note: later" >>"$tree/src/base/a.c" && expect bad "a note to self"
    fresh && echo "$note: later" >>"$tree/docs/a.md" && expect bad "a note to self in a page"
    fresh && printf 'x=1\n\ty=2\n' >"$tree/scripts/a.sh" && expect bad "a tab"
    fresh && printf 'x=1 \n' >"$tree/scripts/a.sh" && expect bad "a blank at the end of a line"
    if "$FORMATTER" --version 2>/dev/null | grep -q 'version 14\.'; then
        fresh && printf 'int  g(void){return 0;}\n' >>"$tree/src/base/a.c" && expect bad "C that is not formatted"
    fi
    [ $rc -eq 0 ] && echo "self-test: passed"
    exit $rc
}

[ "${1-}" = --self-test ] && self_test
check "${1:-$(dirname "$0")/..}"
