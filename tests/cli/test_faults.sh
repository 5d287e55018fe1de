#!/usr/bin/env bash
# test_faults.sh - ranks that are processes and do not do what they should: killed and stopped at
# random moments (faults.py; HAGGLE_TEST_LONG for many of them), unable to write or to allocate, of
# another build, with other weights. And checkpoints are the same files whatever connects the ranks.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh" "$@"

[ -e "$build/libhaggle_mpi.so" ] || { echo "skipped: no MPI plug-in was built"; exit 77; }
command -v mpirun >/dev/null || { echo "skipped: no mpirun in PATH"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
export HAGGLE_PLUGINS=$build OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case $(mpirun --version 2>&1) in
*"Open MPI"*) own_mpirun=(mpirun --quiet --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none) ;;
*) own_mpirun=(mpirun) ;;
esac
small=(train model=tiny seq=32 batch.micro=1 batch.accum=2 sched.warmup=2 sched.kind=constant eval.every=0 data.val=0
    generate.tokens=0 device=cpu threads=1 comm.bucket=64KiB save.every=2 log.every=1000)

# two STATUS WHAT ARGUMENTS -- COMMAND...: two ranks, of which the second is COMMAND
two() {
    local wanted=$1 what=$2 got words=()
    shift 2
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    shift
    timeout 60 "${own_mpirun[@]}" -n 1 "$haggle" "${small[@]}" "${words[@]}" : \
        -n 1 "$@" "${small[@]}" "${words[@]}" >out 2>err
    got=$?
    [ $got -eq "$wanted" ] || { fail "$what: exit status $got, expected $wanted" && tail -5 err; }
}
with() { # NAME KNOB: a program that is haggle with this knob
    printf '#!/bin/bash\nexec "%s" "$@" %s\n' "$haggle" "$2" >"$1"
    chmod +x "$1"
}
same_files() { # WHAT FOLDER OTHER
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp "$2/$file" "$3/$file" || fail "$1: another $file"
    done
}

# the same files from threads and processes, and from any of them that goes on
step() { echo "$1/checkpoints/step-00000000$2"; }
four=(parallel.tensor=2 parallel.data=2 zero.stage=1 optim.state=int8)
run 0 "threads" "${small[@]}" "${four[@]}" run.dir=threads steps=4 comm.engine=thread
run 0 "processes" "${small[@]}" "${four[@]}" run.dir=mpi steps=2 comm.engine=mpi
same_files "processes" "$(step threads 2)" "$(step mpi 2)"
cp -r mpi later
run 0 "threads after processes" "${small[@]}" "${four[@]}" run.dir=mpi steps=4 comm.engine=thread
run 0 "processes after processes" "${small[@]}" "${four[@]}" run.dir=later steps=4 comm.engine=mpi
same_files "threads after processes" "$(step threads 4)" "$(step mpi 4)"
same_files "processes after processes" "$(step threads 4)" "$(step later 4)"
run 0 "one rank after processes" "${small[@]}" batch.accum=4 optim.state=int8 run.dir=mpi steps=6
run 0 "stages after one rank" "${small[@]}" batch.accum=4 optim.state=int8 parallel.pipe=2 run.dir=mpi steps=8 comm.engine=mpi
grep -q "set aside" err && fail "stages after one rank: $(grep "set aside" err)"

# a rank that cannot write: no rank saves, all go on
two 1 "a rank that cannot write" run.dir=full steps=3 parallel.data=2 zero.stage=1 -- prlimit --fsize=4500000 "$haggle"
says err "the checkpoint of step 2 was not written: rank 1: cannot write" "a rank that cannot write"
says err "training goes on" "a rank that cannot write"
grep -q '"step":3' full/log.jsonl || fail "a rank that cannot write: training did not go on"
[ -z "$(ls full/checkpoints)" ] || fail "a rank that cannot write leaves $(ls full/checkpoints)"

# a rank that has no room: all refuse together
with second "memory=17MiB"
two 3 "a rank without memory" run.dir=no steps=3 parallel.data=2 -- ./second
says err "haggle train: rank 1: the run needs" "a rank without memory"

# other weights, another build
cp -r "$(step threads 2)" one
cp -r "$(step threads 4)" two
with second "model=$here/two"
two 1 "other weights" run.dir=no steps=3 parallel.data=2 model=one -- ./second
grep -qE "rank 1 has the model with fingerprint [0-9a-f]+, and rank 0 has with fingerprint" err || fail "other weights: $(cat err)"
python3 - "$haggle" other <<'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
at = data.find(b"\x03\0\0\0GNU\0") + 8  # the note of the build id
data[at] ^= 0xff
open(sys.argv[2], "wb").write(data)
PYTHON
chmod +x other
two 1 "another build" run.dir=no steps=3 parallel.data=2 -- ./other
grep -qE "rank 1 has build [0-9a-f]+, and rank 0 has [0-9a-f]+; all ranks must be alike" err || fail "another build: $(cat err)"
[ -e no ] && fail "a run that was refused left its folder behind"

if [ -n "${HAGGLE_TEST_LONG:-}" ]; then
    many=(--kills 50 --stops 50 --signals 20)
else
    many=(--kills 2 --stops 1 --signals 2)
fi
python3 "$source_tree/tests/cli/faults.py" "$haggle" "${many[@]}" || fail "faults at random moments"
finish
