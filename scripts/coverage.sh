#!/usr/bin/env bash
# coverage.sh - line coverage (gcov) of the parsers of outside files, by unit tests and fuzz seeds.
#
#   scripts/coverage.sh [--min PERCENT] [--missed] [FILE ...]
#
#   --min PERCENT   exit 1 when a file is below (95)        --missed   list lines that were not run
#   FILE            sources to look at, from the root of the tree (the table below)
#   BUILD_COVERAGE  build folder (build-coverage)           JOBS       parallel jobs (all CPUs)
#
# Builds and runs only the tests in the table. Lines that only a training run reaches do not count.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD_COVERAGE=${BUILD_COVERAGE:-build-coverage} JOBS=${JOBS:-$(nproc)}

# source | CTest names (a regular expression) of its tests. Sources that do not exist are skipped.
table() {
    cat <<'TABLE'
src/base/json.c         | base/test_json|fuzz/json
src/base/yaml.c         | base/test_yaml|fuzz/recipe
src/knob/recipe.c       | knob/test_recipe|fuzz/recipe
src/model/safetensors.c | model/test_safetensors|fuzz/safetensors
src/model/weights.c     | model/test_weights|fuzz/weights
src/model/names.c       | model/test_weights
src/model/config.c      | model/test_config|fuzz/config
src/model/tokenizer*.c  | model/test_token.*|fuzz/tokenizer|fuzz/encode
src/model/pattern*.c    | model/test_(pattern|token).*|fuzz/tokenizer|fuzz/encode|fuzz/pattern
src/data/lines.c        | data/test_.*|fuzz/jsonl
src/data/record.c       | data/test_.*|fuzz/jsonl
src/data/render*.c      | data/test_.*|fuzz/jsonl
src/data/template*.c    | data/test_.*|fuzz/jsonl|fuzz/template
src/data/shard.c        | data/test_.*|fuzz/shard
src/train/manifest.c    | train/test_manifest|fuzz/manifest
src/serve/request.c     | serve/test_request|fuzz/request
TABLE
}

min=95 missed=0 wanted=()
while [ $# -gt 0 ]; do
    case $1 in
    --min) min=${2:?--min PERCENT}; shift ;;
    --missed) missed=1 ;;
    -*) sed -n '4,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    *) wanted+=("$1") ;;
    esac
    shift
done

sources=() tests=hostile/
while IFS='|' read -r pattern names; do
    pattern=${pattern// /} names=${names// /}
    for source in $pattern; do
        [ -f "$source" ] || continue
        [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $source "* ]] && continue
        sources+=("$source")
        tests+="|$names"
    done
done < <(table)
[ ${#sources[@]} -gt 0 ] || { echo "coverage.sh: none of these is in the table: ${wanted[*]}" >&2; exit 2; }

generator=()
command -v ninja >/dev/null && generator=(-G Ninja)
[ -f "$BUILD_COVERAGE/CMakeCache.txt" ] ||
    cmake -S . -B "$BUILD_COVERAGE" "${generator[@]}" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="--coverage -O0" -DHAGGLE_CUDA=OFF \
        -DHAGGLE_WERROR=OFF >/dev/null || exit 1
# _FORTIFY_SOURCE needs -O; without it glibc only warns.
cmake "$BUILD_COVERAGE" >/dev/null || exit 1
mapfile -t names < <(ctest --test-dir "$BUILD_COVERAGE" -N -R "^($tests)" | sed -n 's/^ *Test *#[0-9]*: //p')
targets=()
for name in "${names[@]}"; do
    case $name in
    fuzz/*) targets+=("fuzz_${name#fuzz/}") ;;
    *) targets+=("${name##*/}") ;;
    esac
done
cmake --build "$BUILD_COVERAGE" -j "$JOBS" --target "${targets[@]}" >"$BUILD_COVERAGE/build.log" 2>&1 ||
    { tail -20 "$BUILD_COVERAGE/build.log" >&2; exit 1; }
find "$BUILD_COVERAGE" -name '*.gcda' -delete
ctest --test-dir "$BUILD_COVERAGE" -j "$JOBS" -R "^($tests)" >"$BUILD_COVERAGE/test.log" 2>&1 ||
    { tail -20 "$BUILD_COVERAGE/test.log" >&2; exit 1; }

# A source may be compiled into several programs. A line counts when any of them ran it.
status=0
printf '%-28s %7s %7s %8s\n' source lines run percent
for source in "${sources[@]}"; do
    merged=$(find "$BUILD_COVERAGE" -path "*/${source}.gcda" -print0 | xargs -0 -r gcov --stdout 2>/dev/null |
        awk -F: -v want="$PWD/$source" '
            $2 ~ /^ *0$/ { if ($3 == "Source") { name = $4; on = (name == want || index(want, "/" name) > 0) } next }
            on && $1 !~ /^ *-$/ { n = $2 + 0; seen[n] = 1; if ($1 !~ /#####|=====/) ran[n] = 1 }
            END { for (n in seen) print n, (n in ran) ? 1 : 0 }' | sort -n)
    total=$(grep -c . <<<"$merged") run=$(grep -c ' 1$' <<<"$merged")
    if [ -z "$merged" ]; then # no program with this source was run
        printf '%-28s %7s %7s %8s\n' "$source" - - "no test"
        status=1
        continue
    fi
    percent=$(awk -v a="$run" -v b="$total" 'BEGIN { printf "%.1f", b ? 100 * a / b : 0 }')
    printf '%-28s %7d %7d %7s%%\n' "$source" "$total" "$run" "$percent"
    awk -v p="$percent" -v m="$min" 'BEGIN { exit p < m }' || status=1
    [ $missed -eq 1 ] && grep ' 0$' <<<"$merged" | while read -r n _; do printf '    %5d  %s\n' "$n" "$(sed -n "${n}p" "$source")"; done
done
[ $status -eq 0 ] || echo "some files are below $min %"
exit $status
