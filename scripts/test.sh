#!/usr/bin/env bash
# test.sh - what `make test` runs after installing dependencies: builds and tests twice, as released
# and under the sanitizers, and prints both summaries at the end.
#
#   BUILD, BUILD_ASAN   build folders (build, build-asan)      JOBS   parallel jobs (all CPUs)
set -u
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
    {
        printf '%s: ' "$name"
        grep -E 'tests passed|No tests were found' "$log/$name" || echo "no summary"
        sed -n '/^The following tests FAILED/,$p' "$log/$name" | grep -E '^[[:space:]]+[0-9]+ - '
    } >>"$log/summary"
}

run release "$BUILD"
run asan "$BUILD_ASAN" -L unit
echo
echo "== summary"
cat "$log/summary"
exit $failed
