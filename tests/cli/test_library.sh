#!/usr/bin/env bash
# test_library.sh - libhaggle as other programs use it: the header in C and C++, the exported names,
# an installed program.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
header=$source_tree/include/haggle.h
compiler=$(command -v cc || command -v gcc || command -v clang) || { echo "skipped: no compiler"; exit 77; }

"$compiler" -std=c17 -Wall -Wextra -Werror -fsyntax-only -x c "$header" || fail "haggle.h alone in C17"
if cxx=$(command -v c++ || command -v g++); then
    "$cxx" -std=c++17 -Wall -Wextra -Werror -fsyntax-only -x c++ "$header" || fail "haggle.h in C++17"
fi

library=$build/libhaggle.so
[ -e "$library" ] || { echo "skipped: $library is not built"; exit 77; }
nm -D --defined-only "$library" | awk '{ print $NF }' | sort >exported
grep -v '^haggle_' exported >foreign && fail "exported beside haggle_*: $(tr '\n' ' ' <foreign)"
grep -oE 'haggle_[a-z_]+\(' "$header" | tr -d '(' | sort -u >declared
grep -v -x -F -f exported declared >missing && fail "declared and not exported: $(tr '\n' ' ' <missing)"

# The header's example, compiled as a program against an installed copy.
DESTDIR="" cmake --install "$build" --prefix "$here/usr" >install.log 2>&1 || { cat install.log; fail "make install"; }
for file in bin/haggle include/haggle.h; do
    [ -f "usr/$file" ] || fail "usr/$file is not installed"
done
lib=$(dirname "$(find usr -name libhaggle.so)")
[ -f "$lib/pkgconfig/haggle.pc" ] || fail "haggle.pc is not installed"
cat >client.c <<'C'
#include <haggle.h>
int main(void) {
    struct haggle_config *c;
    struct haggle_error e;
    struct haggle_sink sink = {.out = stdout};
    if (haggle_config_new(&c, &e) != 0)
        return 1;
    int rc = haggle_config_set(c, "steps", "2", &e);
    if (rc == 0)
        rc = haggle_config_set(c, "seq", "16", &e);
    if (rc == 0)
        rc = haggle_train(c, &sink, &e);
    if (rc != 0)
        fprintf(stderr, "%s\n", e.text);
    haggle_config_free(c);
    return rc != 0;
}
C
"$compiler" -std=c17 -Wall -Wextra -Werror client.c -o client -Iusr/include -L"$lib" -lhaggle || fail "a client"
LD_LIBRARY_PATH=$lib ./client >out 2>err || { cat err; fail "a client runs"; }
says out "trained   2 steps" "a client trains"
finish
