#!/usr/bin/env bash
# deps.sh - checks for the packages that haggle needs, and installs them.
#
#   scripts/deps.sh               install what is missing: with apt-get when root; otherwise print
#                                 the command to run, and fail
#   scripts/deps.sh --check       only check: exit 0 when nothing required is missing, 1 otherwise
#   scripts/deps.sh --list        print the table below
#   ... build run                 only these groups (default: build test run)
#
# Checks for programs and files, not for packages, so a compiler or CMake from elsewhere counts.
set -u

# group | package (Debian and Ubuntu) | found by | what for
#   cmd:NAME,NAME  one of these programs in PATH   pc:NAME  a pkg-config module   file:GLOB  a file
# A group with a question mark is recommended, the others are required. Without ninja, make runs the
# build. Without the libraries of `run`, haggle is slower. Without MPI, ranks are threads of one
# process (MPICH does as well as Open MPI). Without a browser, the tests of the pages are skipped
# (Firefox cannot print a page's elements, so it is no substitute). bench and format are checked only
# when they are named.
deps() {
    cat <<'TABLE'
build  | gcc                 | cmd:gcc              | the C compiler
build  | libc6-dev           | file:/usr/include/stdio.h | its headers
build  | cmake               | cmd:cmake            | configures the build
build? | ninja-build         | cmd:ninja            | runs it
build  | make                | cmd:make             | the Makefile
build  | pkg-config          | cmd:pkg-config       | finds the libraries below
build  | libyaml-dev         | pc:yaml-0.1          | recipes
build  | libxxhash-dev       | pc:libxxhash         | fingerprints
build  | libutf8proc-dev     | pc:libutf8proc       | tokenizers: categories and normal forms of Unicode
build  | libsqlite3-dev      | pc:sqlite3           | the store of trials
test   | libcmocka-dev       | pc:cmocka            | unit tests
test?  | chromium            | cmd:chromium,chromium-browser,google-chrome | tests of the pages, which are skipped without it
test?  | libopenmpi-dev      | cmd:mpicc            | ranks as processes: the plug-in, which is left out without it
test?  | openmpi-bin         | cmd:mpirun           | starts them
run?   | libopenblas0-pthread | file:/usr/lib/*/openblas-pthread/libopenblas.so.0 | matrix products where the CPU lacks AVX2 (cpu.blas=openblas)
bench  | libopenblas0-openmp | file:/usr/lib/*/openblas-openmp/libopenblas.so.0 | what PyTorch is fastest with
bench  | libblis4-pthread    | file:/usr/lib/*/blis-pthread/libblas.so.3 | compared with the built-in products (cpu.blas=blis)
bench  | libdnnl2            | file:/usr/lib/*/libdnnl.so.2 | compared with the built-in products (cpu.blas=onednn)
bench  | python3-torch       | file:/usr/lib/python3/dist-packages/torch/__init__.py | the baseline that benchmarks compare with
format | clang-format        | cmd:clang-format     | make format, and the style check
TABLE
}

found() { # found PROBE
    local what=${1#*:}
    case $1 in
    cmd:*)
        local name
        for name in ${what//,/ }; do command -v "$name" >/dev/null && return; done
        return 1
        ;;
    pc:*) pkg-config --exists "$what" 2>/dev/null ;;
    file:*) compgen -G "$what" >/dev/null ;;
    esac
}

mode=install
groups=()
for argument; do
    case $argument in
    --check) mode=check ;;
    --list) mode=list ;;
    build | test | run | bench | format) groups+=("$argument") ;;
    *)
        echo "deps.sh: '$argument' is not accepted: --check, --list, or build, test, run, bench, format" >&2
        exit 2
        ;;
    esac
done
[ ${#groups[@]} -gt 0 ] || groups=(build test run)

if [ $mode = list ]; then
    deps
    exit 0
fi

required=() recommended=()
while IFS='|' read -r group package probe purpose; do
    group=${group// /} package=${package// /} probe=${probe// /}
    [[ " ${groups[*]} " == *" ${group%\?} "* ]] || continue
    found "$probe" && continue
    if [ "$group" != "${group%\?}" ]; then
        recommended+=("$package")
        note="recommended"
    else
        required+=("$package")
        note="needed"
    fi
    echo "$note and not found: $package (${purpose# })" >&2
done < <(deps)

missing=("${required[@]}" "${recommended[@]}")
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
if [ $mode = check ]; then
    [ ${#required[@]} -eq 0 ]
    exit
fi

install="apt-get install -y --no-install-recommends"
if ! command -v apt-get >/dev/null; then
    echo "This is not Debian or Ubuntu: install the packages above with your package manager." >&2
    [ ${#required[@]} -eq 0 ]
    exit
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "To install, run:  sudo $install ${missing[*]}" >&2
    [ ${#required[@]} -eq 0 ]
    exit
fi
export DEBIAN_FRONTEND=noninteractive
# A fresh image has no package lists yet: fetch them, once, when a try fails. Recommended packages are
# installed one by one, so that one that this distribution lacks stops nothing else.
updated=no
fetch() {
    $install "$@" && return
    [ $updated = no ] || return
    updated=yes
    apt-get update && $install "$@"
}
if [ ${#required[@]} -gt 0 ] && ! fetch "${required[@]}"; then
    echo "Could not install: ${required[*]}. haggle cannot be built without them." >&2
    exit 1
fi
for package in "${recommended[@]}"; do
    fetch "$package" || echo "Could not install $package. Going on without it." >&2
done
exit 0
