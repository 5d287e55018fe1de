#!/usr/bin/env bash
# test_summary.sh - the summary of `make test` counts what was skipped, and says what it lacks.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
command -v ctest >/dev/null || { echo "skipped: no ctest"; exit 77; }

cat >CTestTestfile.cmake <<'CMAKE'
add_test(a/passes sh -c "echo fine")
add_test(a/skips sh -c "echo before; echo skipped: no moon; echo skipped: no stars; exit 77")
add_test(a/partly sh -c "echo skipped: no sun; echo skipped: no sun; exit 0")
add_test(a/fails sh -c "exit 1")
set_tests_properties(a/skips PROPERTIES SKIP_RETURN_CODE 77)
CMAKE
ctest >output 2>&1
bash "$source_tree/scripts/test.sh" --summary release . output >out
says out "release: 75% tests passed, 1 tests failed out of 4" "the figures of CTest"
says out "4 - a/fails (Failed)" "what failed"
says out "1 of these tests was skipped, not passed; 2 cases of 1 other tests were skipped" "what was skipped"
says out "  a/skips: no moon" "what a skipped test lacks"
says out "  a/partly (2 cases): no sun" "what skipped cases lack"
grep -q passes out && fail "a test that passed is listed"
finish
