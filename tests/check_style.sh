#!/usr/bin/env bash
# check_style.sh - what a reader should never meet: files over 1000 lines, notes to self, tabs, trailing blanks, lines of
# C or CUDA over 100 columns, and C or CUDA that clang-format 14 (the version whose output the tree has) would write
# differently.
#
# Rows of tables may be longer than 100 columns: lines of a .def file, and lines between "clang-format off" and
# "clang-format on". Comments there may not.
#
#   check_style.sh [ROOT]      check_style.sh --self-test
set -u

FORMATTER=${CLANG_FORMAT:-clang-format}
MAX_LINES=1000
MAX_COLUMNS=100
# C, the parts of C files that others include, and CUDA.
SOURCES=('*.[ch]' '*.inc' '*.cu' '*.cuh')
# Spelt apart so that this file does not find itself.
NOTES='TO''DO|FIX''ME|XX''X:|HA''CK:'

files() { # files NAME-PATTERN...: regular files of the tree whose names match, NUL-separated
    local patterns=() pattern
    for pattern; do patterns+=(-o -name "$pattern"); done
    find src include tests bench scripts recipes data docs .ci CMakeLists.txt -type f \( "${patterns[@]:1}" \) -print0 2>/dev/null
}

# Lines over MAX_COLUMNS characters (not bytes) of the files on standard input, NUL-separated, except rows of tables.
too_wide() {
    LC_ALL=C.UTF-8 xargs -0 -r grep -HnE "^.{$((MAX_COLUMNS + 1)),}|clang-format (off|on)" -- | LC_ALL=C awk -F: '
        $1 != file { file = $1; table = file ~ /\.def$/ }
        /\/\/ clang-format (off|on)/ { table = /clang-format off/ || file ~ /\.def$/; next }
        !table || $0 ~ /^[^:]*:[0-9]*: *\/\// { print }'
}

check() { # check ROOT
    cd "$1" || return 1
    local rc=0 code=("${SOURCES[@]}" '*.def' '*.sh' '*.py' '*.txt' '*.cmake' '*.yaml' 'run')
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
    report "lines over $MAX_COLUMNS columns" "$(files "${SOURCES[@]}" '*.def' | too_wide | cut -c1-160)"
    if "$FORMATTER" --version 2>/dev/null | grep -q 'version 14\.'; then
        report "not as clang-format writes it: run 'make format'" "$(files "${SOURCES[@]}" |
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
        printf 'int i;\n' | tee "$tree/src/base/"{a.h,part.inc,kernel.cuh} >/dev/null
        printf 'void g(void) {\n    kernel<<<1, 2, 0, stream>>>(3);\n}\n' >"$tree/src/base/kernel.cu"
        printf '# page\n' >"$tree/docs/a.md"
    }
    expect() { # expect ok|bad WHAT
        local got=ok
        (check "$tree") >/dev/null || got=bad
        [ $got = "$1" ] || { echo "self-test: $2: expected $1, got $got"; rc=1; }
    }
    local note='TO''DO' file
    wide() { printf '%*s' "$1" '' | tr ' ' x; }
    off='// clang-format off' on='// clang-format on'
    fresh && expect ok "a tidy tree"
    for file in a.c a.h part.inc kernel.cu kernel.cuh; do
        fresh && seq 1001 | sed 's/.*/int a&;/' >"$tree/src/base/$file" && expect bad "1001 lines: $file"
        fresh && echo "// $note: later" >>"$tree/src/base/$file" && expect bad "a note to self: $file"
        fresh && printf '//\ttab\n' >>"$tree/src/base/$file" && expect bad "a tab: $file"
        fresh && printf '// blank \n' >>"$tree/src/base/$file" && expect bad "a blank at the end of a line: $file"
        fresh && printf '// %s\n' "$(wide 98)" >>"$tree/src/base/$file" && expect bad "101 columns: $file"
        fresh && printf '// %s\n' "$(wide 97)" >>"$tree/src/base/$file" && expect ok "100 columns: $file"
        "$FORMATTER" --version 2>/dev/null | grep -q 'version 14\.' || continue
        fresh && printf 'int  g(void){return 0;}\n' >>"$tree/src/base/$file" && expect bad "not formatted: $file"
    done
    fresh && seq 1000 | sed 's/.*/int a&;/' >"$tree/src/base/long.h" && expect ok "1000 lines"
    fresh && echo "$note: later" >>"$tree/docs/a.md" && expect bad "a note to self in a page"
    fresh && printf '// \303\244%s\n' "$(wide 96)" >>"$tree/src/base/a.c" && expect ok "100 columns, 101 bytes"
    fresh && printf 'ROW("%s")\n' "$(wide 100)" >"$tree/src/base/a.def" && expect ok "a wide row of a .def file"
    fresh && printf '// %s\n' "$(wide 98)" >"$tree/src/base/a.def" && expect bad "a wide comment in a .def file"
    fresh && printf '%s\nchar t[] = "%s";\n%s\n' "$off" "$(wide 100)" "$on" >>"$tree/src/base/a.c" && expect ok "a wide row of a table"
    fresh && printf '%s\n    // %s\n%s\n' "$off" "$(wide 98)" "$on" >>"$tree/src/base/a.c" && expect bad "a wide comment in a table"
    fresh && printf '%s\n%s\nchar t[] = "%s";\n' "$off" "$on" "$(wide 100)" >>"$tree/src/base/a.c" && expect bad "a wide line after a table"
    fresh && printf 'x=1\n\ty=2\n' >"$tree/scripts/a.sh" && expect bad "a tab"
    fresh && printf 'x=1 \n' >"$tree/scripts/a.sh" && expect bad "a blank at the end of a line"
    [ $rc -eq 0 ] && echo "self-test: passed"
    exit $rc
}

[ "${1-}" = --self-test ] && self_test
check "${1:-$(dirname "$0")/..}"
