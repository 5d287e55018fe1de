#!/usr/bin/env bash
# test_hosts.sh - ranks on two machines, which are two network namespaces of this one, each with its
# own name, shared memory and loopback: they find each other's address, train as ranks that are
# threads do, and tell when a rank of the other machine is killed or its network is gone.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh" "$@"

[ -e "$build/libhaggle_mpi.so" ] || { echo "skipped: no MPI plug-in was built"; exit 77; }
[[ $(mpirun --version 2>&1) == *"Open MPI"* ]] || { echo "skipped: no mpirun of Open MPI in PATH"; exit 77; }
command -v ip >/dev/null || { echo "skipped: no 'ip' (iproute2)"; exit 77; }
one=hg-one-$$ two=hg-two-$$
ip netns add $one 2>/dev/null || { echo "skipped: no right to make network namespaces"; exit 77; }
trap 'ip netns del $one; ip netns del $two 2>/dev/null; rm -rf "$here"' EXIT

# Both have a network that looks alike everywhere, as bridges of containers do, before the one that connects them.
ip netns add $two && ip link add bridge netns $one type veth peer name wire netns $one &&
    ip link add bridge netns $two type veth peer name wire netns $two &&
    ip link add net netns $one type veth peer name net netns $two || { echo "skipped: no veth"; exit 77; }
for host in $one $two; do
    for device in lo bridge wire net; do ip -n $host link set $device up; done
    ip -n $host addr add 172.17.0.1/16 dev bridge
done
ip -n $one addr add 10.77.0.1/24 dev net
ip -n $two addr add 10.77.0.2/24 dev net
printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >machines
cat >inside <<'SCRIPT'
#!/bin/bash
host=$1
shift
exec ip netns exec "$host" unshare -um bash -c 'hostname "$0" && mount -t tmpfs none /dev/shm && exec "$@"' "$host" "$@"
SCRIPT
cat >remote <<SCRIPT
#!/bin/bash
shift
exec $here/inside $two bash -c "\$*"
SCRIPT
chmod +x inside remote
./inside $two true 2>err || { echo "skipped: no right to make namespaces: $(cat err)"; exit 77; }
export HAGGLE_PLUGINS=$build TMPDIR=$here
small=(train model=tiny seq=32 batch.micro=1 parallel.tensor=2 zero.stage=1 parallel.data=2 sched.warmup=2 eval.every=0
    data.val=0 generate.tokens=0 device=cpu threads=1 comm.bucket=64KiB)
hosts() {
    ./inside $one mpirun --quiet --allow-run-as-root --mca plm_rsh_agent "$here/remote" \
        --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca btl_vader_single_copy_mechanism none --hostfile machines -n 4 --map-by ppr:2:node --bind-to none \
        "$haggle" "${small[@]}" "$@"
}

run 0 "threads" "${small[@]}" run.dir=threads steps=6 save.every=3 comm.engine=thread
hosts run.dir=hosts steps=6 save.every=3 >out 2>err || fail "two machines: status $?: $(tail -5 err)"
says err "ranks    4 = data 2 x tensor 2 x pipe 1, processes over MPI" "two machines"
for step in 3 6; do
    for file in model.safetensors optimizer.safetensors; do
        cmp threads/checkpoints/step-00000000$step/$file hosts/checkpoints/step-00000000$step/$file ||
            fail "two machines: another $file at step $step"
    done
done

# fault NAME SECONDS TEXT COMMAND...: while steps are made
fault() {
    local name=$1 seconds=$2 text=$3 pid begin
    shift 3
    hosts run.dir="$name" steps=100000000 save.every=0 save.last=false log.every=1000 comm.timeout=3s >out 2>err &
    pid=$!
    for _ in $(seq 300); do
        [ -s "$name/log.jsonl" ] && break
        sleep 0.1
    done
    begin=$SECONDS
    "$@"
    for _ in $(seq $((10 * seconds))); do
        grep -qE "$text" err && break
        sleep 0.1
    done
    grep -qE "$text" err || fail "$name: after $((SECONDS - begin)) s: $(tail -5 err)"
    echo "$name: told after $((SECONDS - begin)) s"
    for _ in $(seq 50); do # mpirun cannot end what it does not reach
        [ "$name" = killed ] && kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    [ "$name" = killed ] && kill -0 $pid 2>/dev/null && fail "$name: mpirun does not end"
    kill -TERM $pid 2>/dev/null
    for host in $one $two; do ip netns pids $host | xargs -r kill -KILL; done
    wait $pid 2>/dev/null
}
rank() { # RANK: its process
    local p
    for p in $(ip netns pids $two); do
        [[ $(readlink "/proc/$p/exe") == "$haggle" ]] && tr '\0' '\n' <"/proc/$p/environ" |
            grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$p"
    done
}
kill_rank() { kill -KILL "$(rank 3)"; }
fault killed 10 "rank 3 has ended without a word \(killed\?\); it was last (in|at) " kill_rank
fault unplugged 8 "these ranks are missing: .*(rank 2|ranks 2-3) \(has not answered for [0-9.]+ s: stopped, or its machine is gone" \
    ip -n $two link set net down
finish
