#!/usr/bin/env bash
# check_includes.sh - a file may include its own folder and those above it in the order that data flows; the order is the
# list HAGGLE_FOLDERS in CMakeLists.txt. src/cli includes haggle.h and its own headers only; haggle.h includes nothing of
# the project; only src/api and src/cli see haggle.h.
#
#   check_includes.sh [ROOT]      check_includes.sh --self-test
set -u

check() { # check ROOT: prints each violation, fails when there is one
    local root=$1 order violations
    order=$(sed -n 's/^set(HAGGLE_FOLDERS \(.*\))$/\1/p' "$root/CMakeLists.txt")
    if [ -z "$order" ]; then
        echo "$root/CMakeLists.txt has no line set(HAGGLE_FOLDERS ...)"
        return 1
    fi
    violations=$(cd "$root" && find src include -name '*.[ch]' -o -name '*.def' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' |
        LC_ALL=C sort | xargs awk -v order="$order" '
        BEGIN {
            n = split(order, names, " ")
            for (i = 1; i <= n; i++) place[names[i]] = i
        }
        function bad(why) { printf "%s:%d: includes \"%s\": %s\n", FILENAME, FNR, target, why }
        function beside(name, path) {
            path = FILENAME
            sub(/[^\/]*$/, "", path)
            return (getline line < (path name)) >= 0
        }
        FNR == 1 {
            split(FILENAME, part, "/")
            home = part[1] == "src" ? part[2] : ""
            if (part[1] == "src" && home != "cli" && !(home in place))
                printf "%s: folder src/%s is not in HAGGLE_FOLDERS\n", FILENAME, home
        }
        /^[ \t]*#[ \t]*include[ \t]*"/ {
            split($0, quoted, "\"")
            target = quoted[2]
            slash = index(target, "/")
            folder = slash ? substr(target, 1, slash - 1) : ""
            if (part[1] == "include") {
                bad("the public header stands alone")
            } else if (target == "haggle.h") {
                if (home != "cli" && home != "api") bad("only src/cli and src/api see the public header")
            } else if (target ~ /(^|\/)\.\.(\/|$)/) {
                bad("paths start at src/")
            } else if (home == "cli") {
                if (folder != "cli" && !(folder == "" && beside(target)))
                    bad("src/cli includes haggle.h and its own headers only")
            } else if (folder == "" || !(folder in place)) {
                if (!beside(target)) bad("not a folder of HAGGLE_FOLDERS and not beside the file")
            } else if (place[folder] > place[home]) {
                bad(folder " comes after " home " in HAGGLE_FOLDERS")
            }
        }')
    [ -z "$violations" ] && return 0
    echo "$violations"
    return 1
}

self_test() {
    local tree file rc=0
    tree=$(mktemp -d) || exit 1
    trap 'rm -rf "$tree"' EXIT
    fresh() {
        rm -rf "${tree:?}"/*
        mkdir -p "$tree"/src/{base,knob,backend/cpu,api,cli} "$tree"/include
        echo 'set(HAGGLE_FOLDERS base knob backend api)' >"$tree/CMakeLists.txt"
        echo '#include <stdio.h>' >"$tree/include/haggle.h"
        echo '#include "base/b.h"' >"$tree/src/base/a.c"
        touch "$tree"/src/base/b.h "$tree"/src/cli/cmd.h "$tree"/src/backend/cpu/local.h
        printf '#include "base/b.h"\n#include "knob/k.def"\n' >"$tree/src/knob/k.c"
        printf '  #  include "local.h"\n#include "backend/cpu/local.h"\n#include "knob/k.h"\n' >"$tree/src/backend/cpu/c.c"
        printf '#include "haggle.h"\n#include "knob/k.h"\n' >"$tree/src/api/api.c"
        printf '#include "haggle.h"\n#include "cli/cmd.h"\n#include "cmd.h"\n' >"$tree/src/cli/main.c"
    }
    expect() { # expect ok|bad WHAT
        local got=ok
        check "$tree" >/dev/null || got=bad
        [ $got = "$1" ] || { echo "self-test: $2: expected $1, got $got"; rc=1; }
    }
    fresh && expect ok "a tidy tree"
    fresh && echo '#include "knob/k.h"' >>"$tree/src/base/a.c" && expect bad "base includes knob"
    fresh && echo '#include "backend/b.h"' >"$tree/src/knob/k.h" && expect bad "a header includes a later folder"
    fresh && echo '#include "api/api.h"' >"$tree/src/backend/cpu/local.h" && expect bad "a subfolder includes a later folder"
    for file in part.inc kernel.cu kernel.cuh table.def; do
        fresh && echo '#include "knob/k.h"' >"$tree/src/backend/cpu/$file" && expect ok "$file includes an earlier folder"
        fresh && echo '#include "api/api.h"' >"$tree/src/backend/cpu/$file" && expect bad "$file includes a later folder"
    done
    fresh && echo '#include "base/b.h"' >>"$tree/src/cli/main.c" && expect bad "cli includes base"
    fresh && echo '#include "other.h"' >>"$tree/src/cli/main.c" && expect bad "cli includes a header that is not its own"
    fresh && echo '#include "haggle.h"' >>"$tree/src/base/a.c" && expect bad "base includes the public header"
    fresh && echo '#include "base/b.h"' >>"$tree/include/haggle.h" && expect bad "the public header includes base"
    fresh && echo '#include "../knob/k.h"' >>"$tree/src/base/a.c" && expect bad "a path that climbs"
    fresh && mkdir "$tree/src/util" && touch "$tree/src/util/u.h" && echo >"$tree/src/util/u.h" && expect bad "a folder not in the list"
    fresh && : >"$tree/CMakeLists.txt" && expect bad "no list of folders"
    [ $rc -eq 0 ] && echo "self-test: passed"
    exit $rc
}

[ "${1-}" = --self-test ] && self_test
check "${1:-$(dirname "$0")/..}"
