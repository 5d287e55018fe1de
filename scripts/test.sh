#!/usr/bin/env bash
# test.sh - what `make test` runs after installing dependencies: builds and tests twice, as released
# and under the sanitizers, and prints both summaries at the end.
#
#   BUILD, BUILD_ASAN   build folders (build, build-asan)      JOBS   parallel jobs (all CPUs)
#
#   test.sh --summary NAME FOLDER OUTPUT   only the summary: of CTest's OUTPUT and its log in FOLDER
set -u

# Of CTest's log, for each test that printed "skipped: WHY": its name, whether all of it was skipped,
# how many lines, and the first reason.
skips() { # skips LOG OUTPUT
    awk 'FILENAME == ARGV[1] { if (/^[[:space:]]+[0-9]+ - .* \(Skipped\)/) { whole[$3] = 1 } next }
        /^[0-9]+\/[0-9]+ Testing: / { name = $3; if (!(name in n)) { order[++names] = name; n[name] = 0 } }
        /^skipped: / { if (!n[name]++) why[name] = length($0) > 120 ? substr($0, 10, 110) "..." : substr($0, 10) }
        END { for (i = 1; i <= names; i++) { name = order[i]
            if (name in whole || n[name]) printf "%s\t%d\t%d\t%s\n", name, name in whole, n[name], why[name] } }' "$2" "$1"
}

summarize() { # summarize NAME FOLDER OUTPUT
    local list
    printf '%s: ' "$1"
    grep -E 'tests passed|No tests were found' "$3" || echo "no summary"
    sed -n '/^The following tests FAILED/,$p' "$3" | grep -E '^[[:space:]]+[0-9]+ - '
    list=$(skips "$2/Testing/Temporary/LastTest.log" "$3" 2>/dev/null)
    [ -n "$list" ] || return 0
    awk -F '\t' -v name="$1" '{ if ($2) tests++; else { cases += $3; others++ } }
        END { printf "%s: %d of these tests %s skipped, not passed", name, tests, tests == 1 ? "was" : "were"
            if (cases) printf "; %d cases of %d other tests were skipped", cases, others
            print "" }' <<<"$list"
    awk -F '\t' '{ printf "  %s%s: %s\n", $1, $2 ? "" : sprintf(" (%d case%s)", $3, $3 == 1 ? "" : "s"), $4 }' <<<"$list"
}

if [ "${1:-}" = --summary ]; then
    summarize "$2" "$3" "$4"
    exit
fi
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build} BUILD_ASAN=${BUILD_ASAN:-build-asan} JOBS=${JOBS:-$(nproc)}
log=$(mktemp -d) || exit 1
trap 'rm -rf "$log"' EXIT

# A leak is a failure, and so is anything that UBSan reports. detect_stack_use_after_return is off:
# GCC before 14 aligns its fake frames to 32 bytes, and 64-byte stores of AVX-512 code into them
# fault.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

failed=0
run() { # run NAME FOLDER CTEST-ARGUMENTS...
    local name=$1 folder=$2
    shift 2
    echo "== $name: build"
    if ! make --no-print-directory "$name-build"; then
        echo "$name: does not build" >>"$log/summary"
        failed=1
        return
    fi
    echo "== $name: test"
    ctest --test-dir "$folder" --output-on-failure -j "$JOBS" --no-tests=error "$@" | tee "$log/$name"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
    summarize "$name" "$folder" "$log/$name" >>"$log/summary"
}

run release "$BUILD"
run asan "$BUILD_ASAN" -L unit
echo
echo "== summary"
cat "$log/summary"
exit $failed
