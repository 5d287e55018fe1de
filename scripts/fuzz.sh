#!/usr/bin/env bash
# fuzz.sh - fuzzes the parsers of outside files (tests/fuzz/fuzz_*.c): libFuzzer, ASan and UBSan.
#
#   scripts/fuzz.sh build                     build the targets in BUILD_FUZZ (build-fuzz)
#   scripts/fuzz.sh list                      print the names of the targets
#   scripts/fuzz.sh run TARGET SECONDS        fuzz one target, starting from its seeds
#   scripts/fuzz.sh all SECONDS               every target, one after the other
#   scripts/fuzz.sh pack DIR                  copy programs, seeds and libraries to DIR, for another
#                          machine; there DIR/run SECONDS [JOBS-PER-TARGET] runs all targets at once
#
# Findings are left in BUILD_FUZZ/findings/TARGET (on the other machine in DIR/findings), and the
# exit status is then 1. Copy a finding that is fixed to tests/fuzz/seeds/TARGET: CTest replays it.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD_FUZZ=${BUILD_FUZZ:-build-fuzz} JOBS=${JOBS:-$(nproc)} CC=${FUZZ_CC:-clang}
# Limits per input: 5 s and 512 MiB. abort() is a finding too, because parsers must return errors.
limits=(-timeout=5 -rss_limit_mb=768 -malloc_limit_mb=512)

usage() {
    sed -n '3,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

targets() {
    local source
    for source in tests/fuzz/fuzz_*.c; do
        source=${source##*/fuzz_}
        echo "${source%.c}"
    done
}

build() { # build [TARGET ...]: without names, all targets
    command -v "$CC" >/dev/null || { echo "fuzz.sh: needs clang (package clang)" >&2; exit 1; }
    local generator=()
    command -v ninja >/dev/null && generator=(-G Ninja)
    [ -f "$BUILD_FUZZ/CMakeCache.txt" ] ||
        cmake -S . -B "$BUILD_FUZZ" "${generator[@]}" -DCMAKE_C_COMPILER="$CC" -DCMAKE_BUILD_TYPE=Debug \
            -DCMAKE_C_FLAGS=-fsanitize=fuzzer-no-link -DHAGGLE_SANITIZE=ON -DHAGGLE_FUZZ=ON -DHAGGLE_WERROR=OFF \
            -DHAGGLE_CUDA=OFF >/dev/null || exit 1
    # shellcheck disable=SC2046
    [ $# -gt 0 ] || set -- $(targets)
    cmake --build "$BUILD_FUZZ" -j "$JOBS" --target "${@/#/fuzz_}" || exit 1
}

# The largest seed plus a quarter: libFuzzer cuts off longer inputs.
longest() { # longest FOLDER
    find "$1" -type f -printf '%s\n' | sort -n | tail -1 | awk '{ n = $1 * 5 / 4 } END { print int(n > 4096 ? n : 4096) }'
}

fuzz() { # fuzz TARGET SECONDS
    local target=$1 seconds=$2 corpus=$BUILD_FUZZ/corpus/$1 findings=$BUILD_FUZZ/findings/$1 dict=()
    mkdir -p "$corpus" "$findings"
    [ -f "tests/fuzz/dict/$target.dict" ] && dict=(-dict="tests/fuzz/dict/$target.dict")
    echo "== $target: $seconds s"
    "$BUILD_FUZZ/tests/fuzz/fuzz_$target" "${limits[@]}" "${dict[@]}" -max_len="$(longest "tests/fuzz/seeds/$target")" \
        -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$findings/" "$corpus" "tests/fuzz/seeds/$target" >"$findings/log" 2>&1
    local rc=$?
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)|ERROR|does not hold|runtime error' "$findings/log"
    return $rc
}

pack() { # pack DIR
    local dir=$1 target library
    mkdir -p "$dir/seeds" "$dir/dict" || exit 1
    for target in $(targets); do
        strip --strip-debug -o "$dir/fuzz_$target" "$BUILD_FUZZ/tests/fuzz/fuzz_$target" || exit 1
        mkdir -p "$dir/seeds/$target"
        cp -r "tests/fuzz/seeds/$target/." "$BUILD_FUZZ/corpus/$target/." "$dir/seeds/$target/" 2>/dev/null
        cp "tests/fuzz/dict/$target.dict" "$dir/dict/" 2>/dev/null
        # The other machine has a C library and a loader. All other libraries are copied.
        ldd "$dir/fuzz_$target" | awk '$3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*)\.so' |
            while read -r library; do cp -Ln "$library" "$dir/"; done # the programs look in $ORIGIN
    done
    { printf '#!/usr/bin/env bash\n' && declare -f longest && cat; } >"$dir/run" <<'RUN'
# run SECONDS [JOBS-PER-TARGET] [TARGET ...]: runs all targets at once, and prints a line for each.
set -u
cd "$(dirname "$0")" || exit 1
seconds=${1:?run SECONDS [JOBS-PER-TARGET] [TARGET ...]} jobs=${2:-1}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- $(ls fuzz_* | sed 's/^fuzz_//')
mkdir -p findings corpus
# Older versions of ASan need a part of the address space free. If addresses cannot be fixed
# (setarch fails), it mostly is.
fixed=()
setarch -R true 2>/dev/null && fixed=(setarch -R)
pids=()
for target; do
    mkdir -p "findings/$target" "corpus/$target"
    dict=()
    [ -f "dict/$target.dict" ] && dict=(-dict="dict/$target.dict")
    for job in $(seq "$jobs"); do
        LD_LIBRARY_PATH=. "${fixed[@]}" "./fuzz_$target" @LIMITS@ "${dict[@]}" -max_len="$(longest "seeds/$target")" -max_total_time="$seconds" -print_final_stats=1 -reload=10 \
            -artifact_prefix="findings/$target/" "corpus/$target" "seeds/$target" >"findings/$target.$job.log" 2>&1 &
        pids+=($!)
    done
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
for target; do
    for log in "findings/$target".*.log; do
        printf '%-12s ' "$target"
        awk '/stat::number_of_executed_units/ { runs = $2 } /stat::average_exec_per_sec/ { rate = $2 } /stat::peak_rss_mb/ { rss = $2 }
             /ERROR:|does not hold|runtime error/ && !what { what = $0 }
             / cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1) }
             END { printf "runs %s, per second %s, MiB %s, edges %s, %s\n", runs, rate, rss, cov, what ? what : "nothing found" }' "$log"
    done
done
exit $status
RUN
    sed -i "s|@LIMITS@|${limits[*]}|" "$dir/run"
    chmod +x "$dir/run"
    echo "$dir: $(du -sh "$dir" | cut -f1), $(targets | wc -l) targets; there: ./run SECONDS [JOBS-PER-TARGET]"
}

case ${1-} in
build) build ;;
list) targets ;;
run)
    [ $# -eq 3 ] || usage
    targets | grep -qx -- "$2" || { echo "fuzz.sh: there is no target '$2'; there are:" $(targets) >&2; exit 2; }
    build "$2"
    fuzz "$2" "$3"
    ;;
all)
    [ $# -eq 2 ] || usage
    build
    status=0
    for target in $(targets); do fuzz "$target" "$2" || status=1; done
    exit $status
    ;;
pack)
    [ $# -eq 2 ] || usage
    build
    pack "$2"
    ;;
*) usage ;;
esac
