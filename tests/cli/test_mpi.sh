#!/usr/bin/env bash
# test_mpi.sh - ranks that are processes: started by haggle train or by the user's mpirun they train
# as ranks that are threads do, to the bit; what is refused; signals and statuses; nobody is left.
. "$(dirname "$0")/lib.sh" "$@"

[ -e "$build/libhaggle_mpi.so" ] || { echo "skipped: no MPI plug-in was built"; exit 77; }
command -v mpirun >/dev/null || { echo "skipped: no mpirun in PATH"; exit 77; }
export HAGGLE_PLUGINS=$build OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case $(mpirun --version 2>&1) in
*"Open MPI"*) own_mpirun=(mpirun --quiet --oversubscribe --bind-to none) ;;
*) own_mpirun=(mpirun) ;;
esac
small=(train model=tiny seq=32 batch.micro=1 steps=6 sched.warmup=2 eval.every=3 eval.batches=3 data.val=0.05
    generate.tokens=0 device=cpu threads=1 save.every=0 save.last=false comm.bucket=64KiB)

# own STATUS WHAT N ARGUMENT...: as run, under the user's own mpirun
own() {
    local wanted=$1 what=$2 n=$3 got
    shift 3
    timeout 60 "${own_mpirun[@]}" -n "$n" "$haggle" "$@" >out 2>err
    got=$?
    [ $got -eq "$wanted" ] && return
    fail "$what: exit status $got, expected $wanted"
    sed 's/^/    /' err | tail -5
}

# the engine by itself: the cases of the unit test, with processes
if [ -x "$build/tests/test_comm" ]; then
    timeout 100 "${own_mpirun[@]}" -n 5 "$build/tests/test_comm" good >out 2>err || fail "the engine: $(cat out err)"
    [ "$(grep -c "is done" out)" -eq 5 ] || fail "the engine: $(cat out err)"
    for fault in one_is_missing:"rank 3" nothing_comes:"rank 2" nobody_takes_it:"rank 1" a_chain_waits:"rank 2 (" \
        one_gives_up:"its disk is full"; do
        timeout 60 "${own_mpirun[@]}" -n 5 "$build/tests/test_comm" "${fault%:*}" >out 2>err && fail "$fault: status 0"
        grep -q "is wrong" out && fail "$fault: $(cat out)"
        grep "heard: " out | grep -qF "${fault#*:}" || fail "$fault: $(cat out err)"
    done
else
    echo "the engine's own cases are left out: test_comm was not built"
fi

# the same losses, by launcher, by mpirun, with threads
run 0 "threads" "${small[@]}" run.dir=t2 ranks=2 batch.accum=4 comm.engine=thread
run 0 "processes" "${small[@]}" run.dir=p2 --ranks 2 batch.accum=4 --json p2.json log.trace=trace.json
says err "ranks    2 = data 2 x tensor 1 x pipe 1, processes over MPI" "the plan"
says out "trained   6 steps" "the summary"
own 0 "mpirun" 2 "${small[@]}" run.dir=m2 batch.accum=4 --json -
json out 'd["verb"] == "train" and len(d["rank_results"]) == 2' "one JSON object of all ranks"
four=(batch.accum=4 parallel.tensor=2 zero.stage=2)
run 0 "threads, 4" "${small[@]}" "${four[@]}" run.dir=t4 ranks=4 comm.engine=thread
run 0 "processes, 4" "${small[@]}" "${four[@]}" run.dir=p4 ranks=4 comm.engine=mpi
run 0 "threads, pipe" "${small[@]}" run.dir=t3 parallel.pipe=3 batch.accum=6 comm.engine=thread
run 0 "processes, pipe" "${small[@]}" run.dir=p3 parallel.pipe=3 batch.accum=6 comm.engine=mpi
python3 - t2:p2 t2:m2 t4:p4 t3:p3 <<'PYTHON' || fail "processes and threads differ"
import json, sys
def read(name):
    lines = [json.loads(line) for line in open(name + "/log.jsonl")]
    return [(x["step"], x.get("loss"), x.get("grad_norm"), x.get("validation_loss")) for x in lines if "step" in x]
for pair in sys.argv[1:]:
    a, b = (read(name) for name in pair.split(":"))
    assert len(a) >= 6
    if a != b:
        sys.exit(f"    {pair}: {a}\n    {b}")
PYTHON
json p2.json 'len(d["rank_results"]) == 2 and all(r["process_peak_bytes"] > 0 for r in d["rank_results"])' \
    "the memory of each process"
json trace.json 'sorted({e["pid"] for e in d["traceEvents"]}) == [0, 1]' "a process per rank in the trace"
ls trace.json.rank* 2>/dev/null && fail "parts of the trace are left behind"

# refusals: one sentence, and nothing written
[ "$(grep -c "haggle train:" err)" -eq 0 ] || fail "messages of a run that succeeded: $(cat err)"
own 2 "another number of ranks" 2 "${small[@]}" run.dir=no ranks=4
says err "mpirun has started 2 processes, and the knobs ask for 4 ranks" "another number of ranks"
own 2 "threads under mpirun" 2 "${small[@]}" run.dir=no comm.engine=thread
says err "comm.engine=thread: ranks are threads of one process, and mpirun has started 2" "threads under mpirun"
own 2 "another verb" 2 verify somewhere
[ "$(grep -c "only 'haggle train' runs on several" err)" -eq 1 ] || fail "another verb: $(cat err)"
own 1 "other knobs on one rank" 1 "${small[@]}" run.dir=no : -n 1 "$haggle" "${small[@]}" run.dir=no optim.lr=0.5
says err "rank 1 has optim.lr = 0.5, and rank 0 has 0.0003; all ranks must be alike" "other knobs on one rank"
yes "some words of text to train on" | head -3000 >text.txt
yes "quite other words to learn from" | head -3000 >other.txt
own 1 "other data on one rank" 1 "${small[@]}" run.dir=no data.path=text.txt tokenizer=bytes : \
    -n 1 "$haggle" "${small[@]}" run.dir=no data.path=other.txt tokenizer=bytes
says err "rank 1 has data with fingerprint" "other data on one rank"
run 3 "a budget that is too small" "${small[@]}" run.dir=no parallel.pipe=2 batch.micro=8 memory=17MiB comm.engine=mpi
[ "$(grep -c "haggle train:" err)" -eq 1 ] || fail "a refusal is not said once: $(cat err)"
mkdir bin && ln -s "$(command -v timeout)" "$(command -v sed)" "$(command -v tail)" bin
PATH=$here/bin run 1 "no mpirun" "${small[@]}" run.dir=no ranks=2 comm.engine=mpi
says err "comm.engine=mpi: mpirun is not in PATH" "no mpirun"
[ -e no ] && fail "a run that was refused left its folder behind"

# signals, and the deaths of processes: by their ids, which only this run has
python3 - "$haggle" "${small[@]}" <<'PYTHON' || fail "processes and signals"
import os, re, signal, subprocess, sys, time
command = sys.argv[1:] + ["steps=100000000", "eval.every=0", "log.every=20", "ranks=3", "comm.engine=mpi",
                         "comm.timeout=4s"]
wrong = 0
def fields(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    except OSError:
        return None
def below(pid):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        f = fields(name)
        if f and int(f[1]) == pid:
            found += [int(name)] + below(int(name))
    return found
def is_rank(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        return next((int(v.split(b"=")[1]) for v in f.read().split(b"\0") if v.split(b"=")[0] in
                     (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")), None)
def case(name, act, status, *said):
    global wrong
    run = subprocess.Popen(command + ["run.dir=" + name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    lines = []
    while not lines or not re.match(rb"step \d", lines[-1]):
        line = run.stderr.readline()
        if not line:
            break
        lines.append(line)
    all_below = below(run.pid)
    ranks = {is_rank(p): p for p in all_below if is_rank(p) is not None}
    act(run, ranks)
    try:
        rest = run.communicate(timeout=40)[1]
    except subprocess.TimeoutExpired:
        run.kill()
        rest = b"(does not end)"
    text = b"".join(lines + [rest]).decode()
    until = time.time() + 8
    alive = all_below
    while alive and time.time() < until:
        time.sleep(0.1)
        alive = [p for p in alive if fields(p) and fields(p)[0] != "Z"]
    if run.returncode != status or alive or len(ranks) != 3 or any(len(re.findall(s, text)) != 1 for s in said):
        wrong += 1
        print(f"    {name}: status {run.returncode}, left {alive}, ranks {ranks}:\n{text[-800:]}")
    for p in alive:
        os.kill(p, signal.SIGKILL)
case("interrupt", lambda run, ranks: run.send_signal(signal.SIGINT), 75, "stopping after this step",
     "haggle train: stopped on request")
def twice(run, ranks): # the ranks cannot stop while one of them sleeps
    os.kill(ranks[2], signal.SIGSTOP)
    run.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    run.send_signal(signal.SIGTERM)
case("twice", twice, 128 + signal.SIGTERM)
case("launcher", lambda run, ranks: run.kill(), -signal.SIGKILL)
# Who is gone, what it did and what it completed before; a rank that is only stopped may go on for a while.
op = r"(?:'\w+' of '[\w.]+' in 'train'|the meeting before a step|a meeting of all ranks|its own work)"
case("killed", lambda run, ranks: os.kill(ranks[2], signal.SIGKILL), 1,
     rf"rank 2 has ended without a word \(killed\?\); it was last in {op}, after {op}\n")
case("stopped", lambda run, ranks: os.kill(ranks[1], signal.SIGSTOP), 1,
     rf"these ranks are missing: rank 1 \(has not answered for [\d.]+ s: stopped, or its machine is gone; last in {op}, "
     rf"after {op}\); these wait: ranks? 0.* \(in .*; rank 1 is stopped \(process \d+\)\n")
case("first", lambda run, ranks: os.kill(ranks[0], signal.SIGKILL), 1,
     rf"rank 0 has ended without a word \(killed\?\); it was last in {op}, after {op}\n")
sys.exit(wrong)
PYTHON
finish
