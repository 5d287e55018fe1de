#!/usr/bin/env bash
# test_make.sh - `make` builds what people use, and no test; it ends with what to type. `make deps`
# goes on without what is only recommended.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
command -v make >/dev/null || { echo "skipped: no make"; exit 77; }

unset MAKEFLAGS MAKELEVEL
make -n -C "$source_tree" BUILD="$build" >out 2>&1 || fail "make -n"
says out "--target program" "make builds the program"
says out "haggle train model=tiny steps=200" "make ends with what to type"
make -n -C "$source_tree" BUILD="$build" release-build >out 2>&1 || fail "make -n release-build"
grep -q -- "--target program" out && fail "the build for tests leaves the tests out"
if [ -e "$build/build.ninja" ]; then
    ninja -C "$build" -t commands program >commands || fail "there is no target program"
    says commands "main.c.o" "the program is part of its target"
    says commands "libhaggle.so" "the library is part of it"
    grep -c 'cmocka\|replay.c' commands | grep -qx 0 || fail "tests or fuzzers are part of the target program"
fi

# A distribution without one recommended package: everything else is installed, and the status is 0.
mkdir bin
for tool in bash cat grep; do ln -s "$(command -v $tool)" bin/; done
cat >bin/apt-get <<'SH'
#!/bin/bash
echo "$*" >>"$LOG"
[[ $* != *chromium* ]]
SH
printf '#!/bin/bash\necho 0\n' >bin/id
chmod +x bin/*
LOG=$here/log PATH=$here/bin bash "$source_tree/scripts/deps.sh" >out 2>&1 || fail "deps.sh fails without a recommended package"
says out "Could not install chromium. Going on without it." "deps.sh"
says log "libcmocka-dev" "deps.sh installs what is needed"
says log "ninja-build" "deps.sh installs what is recommended"
[ "$(grep -c update log)" -le 1 ] || fail "deps.sh fetches the lists more than once"
# A browser under another name counts.
ln -s "$here/bin/id" bin/google-chrome
PATH=$here/bin bash "$source_tree/scripts/deps.sh" --check test >out 2>&1
grep -q chromium out && fail "deps.sh does not see google-chrome"
finish
