#!/usr/bin/env bash
# pack_device.sh - copies everything needed to try the CUDA plug-in on another machine into one
# folder: the program, the plug-in, the tests and benches that use a device, reference checkpoints
# if there are some, and libraries that may be missing there. That machine must have CUDA's
# libraries (cuBLAS) and the driver.
#
#   scripts/pack_device.sh FOLDER         BUILD=dir   build folder (build)
#
# There:  FOLDER/check.sh            tests, verification, doctor
#         FOLDER/bench_cuda          step times next to their floor; bench_predict, bench_trials and
#                                    bench_tuner too, if they were built
set -eu
cd "$(dirname "$0")/.."
out=${1:?usage: scripts/pack_device.sh FOLDER}
build=${BUILD:-build}
[ -f "$build/libhaggle_cuda.so" ] || {
    echo "pack_device.sh: $build/libhaggle_cuda.so is not built: run 'make cuda'" >&2
    exit 1
}
mkdir -p "$out"
cp "$build/haggle" "$build/libhaggle_cuda.so" "$out/"
programs=(haggle)
for test in test_cuda test_cuda_quantized test_cuda_plugin test_train_cuda test_effects; do
    cp "$build/tests/$test" "$out/"
    programs+=("$test")
done
for bench in bench_cuda bench_predict bench_trials bench_tuner; do # only those that were built
    [ ! -f "$build/$bench" ] || { cp "$build/$bench" "$out/" && programs+=("$bench"); }
done
fixtures=${HAGGLE_FIXTURES:-../shared/fixtures/hf}
mkdir -p "$out/hf"
cp -r tests/reference/*/ "$out/hf/"
[ ! -d "$fixtures" ] || { cp -r "$fixtures"/. "$out/hf/" && chmod -R u+w "$out/hf"; }

# The libraries of the programs, except the C library. The programs look in their folder first.
for program in "${programs[@]}"; do
    ldd "$out/$program" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | grep -vE '/(libc|libm|libdl|libpthread|librt|ld-linux[^/]*|libgcc_s|libstdc\+\+)\.so' |
    while read -r library; do
        [ "$library" -ef "$out/${library##*/}" ] || cp -L "$library" "$out/"
    done

cat >"$out/check.sh" <<'CHECK'
#!/usr/bin/env bash
# Runs all tests that need a device. The last line says how many failed.
here=$(cd "$(dirname "$0")" && pwd)
export HAGGLE_PLUGINS="$here" HAGGLE_FIXTURES="$here/hf"
failed=0
try() {
    echo "== $*"
    "$@" || { failed=$((failed + 1)) && echo "FAILED: $*"; }
}
try "$here/test_cuda_plugin"
try "$here/test_cuda"
try "$here/test_cuda_quantized"
try "$here/test_train_cuda"
try "$here/test_effects" # knobs of a device have an effect only with a device
for model in "$here"/hf/*/; do
    [ -f "$model/ref.json" ] && try "$here/haggle" verify "$model" device=cuda
    [ -f "$model/ref.json" ] && try "$here/haggle" verify "$model" device=cuda precision=bf16
    [ -f "$model/ref.json" ] && try "$here/haggle" verify "$model" device=cuda precision=fp16
    [ -f "$model/ref.json" ] && try "$here/haggle" verify "$model" device=cuda fuse.norm=false fuse.act=false fuse.loss=false \
        fuse.optim=false fuse.qkv=false
done
try "$here/haggle" train model=tiny device=cuda steps=60 eval.every=30 generate.tokens=32 save.last=false resume=false \
    run.dir="${TMPDIR:-/tmp}/haggle-check"
# One worker process measures one setting after another on the device. None may fail.
tuned() {
    "$here/haggle" tune model=tiny device=cuda batch.micro=2 batch.accum=4 --allow precision --time 20s --store none \
        --save "${TMPDIR:-/tmp}/haggle-tuned.yaml" --json "${TMPDIR:-/tmp}/haggle-tuned.json" &&
        ! grep -A1 '"outcome": "failed"' "${TMPDIR:-/tmp}/haggle-tuned.json"
}
try tuned
try "$here/haggle" doctor
echo "failed: $failed"
exit $((failed > 0))
CHECK
chmod +x "$out/check.sh"
for program in "${programs[@]}"; do
    strip --strip-debug "$out/$program" 2>/dev/null || true
done
du -sh "$out" | cut -f1
