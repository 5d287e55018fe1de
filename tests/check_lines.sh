#!/usr/bin/env bash
# check_lines.sh - every folder of src/ keeps to its budget of code lines (comments and blank lines apart), which stands in
# the table of docs/design.md: "| src/NAME | budget |".
#
#   check_lines.sh [ROOT]      check_lines.sh --print [ROOT]      check_lines.sh --self-test
set -u

count() { # count FOLDER: lines that are neither blank nor a // comment
    find "$1" -type f \( -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \) -print0 |
        xargs -0 -r cat | grep -cvE '^[[:space:]]*(//.*)?$'
}

budget() { # budget FOLDER: from the table; nothing when there is no row
    sed -n "s;^| *$1 *| *\([0-9][0-9,]*\) *|.*;\1;p" docs/design.md | tr -d ,
}

check() { # check ROOT
    local rc=0 folder lines most
    cd "$1" || return 1
    for folder in src/*/; do
        folder=${folder%/}
        lines=$(count "$folder") most=$(budget "$folder")
        if [ -z "$most" ]; then
            echo "$folder has no line budget in docs/design.md"
            rc=1
        elif [ "$lines" -gt "$most" ]; then
            echo "$folder has $lines code lines; its budget in docs/design.md is $most"
            rc=1
        fi
    done
    return $rc
}

print() { # print ROOT: the folders with their lines, for the table
    cd "$1" || return 1
    for folder in src/*/; do
        folder=${folder%/}
        printf '%-12s %6d of %s\n' "$folder" "$(count "$folder")" "$(budget "$folder")"
    done
}

self_test() {
    local tree rc=0
    tree=$(mktemp -d) || exit 1
    trap 'rm -rf "$tree"' EXIT
    fresh() {
        rm -rf "${tree:?}"/*
        mkdir -p "$tree/src/base" "$tree/docs"
        printf '// a comment\n\nint f(void);\n    // another\nint g(void); // counts\n' >"$tree/src/base/a.c"
        printf '| folder | budget |\n|---|---|\n| src/base | 2 |\n' >"$tree/docs/design.md"
    }
    expect() { # expect ok|bad WHAT
        local got=ok
        (check "$tree") >/dev/null || got=bad
        [ $got = "$1" ] || { echo "self-test: $2: expected $1, got $got"; rc=1; }
    }
    fresh && expect ok "a folder within its budget"
    fresh && echo 'int h;' >>"$tree/src/base/a.c" && expect bad "a folder over its budget"
    fresh && echo 'int h;' >"$tree/src/base/a.inc" && expect bad "an included file counts"
    fresh && mkdir "$tree/src/new" && echo 'int h;' >"$tree/src/new/n.c" && expect bad "a folder without a budget"
    [ $rc -eq 0 ] && echo "self-test: passed"
    exit $rc
}

[ "${1-}" = --self-test ] && self_test
if [ "${1-}" = --print ]; then
    print "${2:-$(dirname "$0")/..}"
else
    check "${1:-$(dirname "$0")/..}"
fi
