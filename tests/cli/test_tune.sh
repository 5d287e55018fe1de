#!/usr/bin/env bash
# test_tune.sh - haggle tune from the shell: a recipe that trains unchanged, what may change and
# what may not, budgets for memory and latency, killed and stopped searches that continue, workers
# that end, results that are used again, hybrid runs, and input that is refused before anything is
# written. No check depends on step times: where a slow machine could make a difference (how many
# steps there was time for), the script reads the result first.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export XDG_DATA_HOME=$here/data
cat >"$here/r.yaml" <<'YAML'
model: tiny
seq: 16
batch: {micro: 2, accum: 4}
optim: {lr: 0.002}
sched: {warmup: 3}
seed: 5
threads: 1
generate: {tokens: 0}
YAML

# field FILE NAME: prints a member of the outermost object, as it is written.
field() {
    sed -n "s/^  \"$2\": \(.*[^,]\),\{0,1\}\$/\1/p" "$1"
}

# values RECIPE: prints the name and value of every knob.
values() {
    "$haggle" knobs "$1" | awk '/^[a-z]/ && $1 != "knob" { print $1, $2 }' | sort
}

# names FILE: prints the names of a search's settings, one per line.
names() {
    sed -n 's/^ *"name": "\(.*\)",$/\1/p' "$1"
}

# samples FILE: prints the sequences per step of all settings, each number once. The recipe has four
# micro-batches of two.
samples() {
    names "$1" | grep -E '=|as given' | awk '{
        micro = 2; accum = 4
        for (i = 1; i <= NF; i++) {
            if (sub(/^batch.micro=/, "", $i)) micro = $i
            else if (sub(/^batch.accum=/, "", $i)) accum = $i
        }
        print micro * accum
    }' | sort -n | uniq
}

# rows STORE: prints how many trials the newest tuning has.
rows() {
    "$haggle" trials last --store "$1" -o jsonl -q 2>/dev/null | wc -l
}

# begin STORE ARGUMENT...: starts a search in the background, with SIGINT as at a prompt. Its
# process id is in $pid.
begin() {
    local store=$1
    shift
    env --default-signal=INT "$haggle" tune r.yaml --busy count --store "$store" "$@" >bg.out 2>bg.err &
    pid=$!
}

# wait_rows STORE N: waits until there are N trials and the search still runs.
wait_rows() {
    for _ in $(seq 600); do
        [ "$(rows "$1")" -ge "$2" ] && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.02
    done
    fail "no $2 trials in $1 while the search ran"
    sed 's/^/    /' bg.err | tail -5
}

# gone WHAT PROCESS...: checks that after a moment none of them is alive (a zombie is not alive).
gone() {
    local what=$1 left process
    shift
    for _ in $(seq 200); do
        left=
        for process in "$@"; do
            case $(sed 's/.*) //' "/proc/$process/stat" 2>/dev/null) in
            '' | Z* | X*) ;;
            *) left="$left $process" ;;
            esac
        done
        [ -z "$left" ] && return
        sleep 0.05
    done
    fail "$what: still there:$left"
}

# repeated STORE WHAT: checks that the newest tuning measured no setting twice while it explored.
repeated() {
    local twice
    twice=$("$haggle" trials last --store "$1" -o jsonl -q |
        sed 's/.*"key":"\([^"]*\)","setting":"\([^"]*\)".*"stage":"\([^"]*\)".*/\1 \2 \3/' | grep -v 'finalists$' | sort | uniq -d)
    [ -z "$twice" ] || fail "$2: measured twice: $twice"
}

plain() {
    run 0 "a search" tune r.yaml --busy count --time 1500ms --store s.db --json s.json
    json s.json 'd["verdict"] and all(s and isinstance(s, str) and "\n" not in s for s in d["verdict"])' "its verdict"
    json s.json '"\n" + "\n".join(d["verdict"]) + "\n" in open("out").read()' "its verdict, a line a sentence"
    values r.yaml >given
    values tuned.yaml >got
    # Only knobs that may be tuned differ. All knobs that change the mathematics have the recipe's
    # values.
    "$haggle" knobs r.yaml | awk '/^[a-z]/ { name = $1 } /tunable\]/ { print name }' | sort >tunable
    [ -s tunable ] || fail "no knob is tunable"
    diff given got | awk '/^[<>]/ { print $2 }' | sort -u | comm -23 - tunable >moved
    [ -s moved ] && fail "what may not move has moved: $(tr '\n' ' ' <moved)"
    cut -d' ' -f1 given | sort >all
    awk '/^[a-z]/ && /:$/ { group = $1; sub(/:/, ".", group); next }
         { name = $1; sub(/:.*/, "", name) } /^[a-z]/ { group = "" } /^ *[a-z]/ { print group name }' tuned.yaml | sort >written
    cmp -s all written || fail "the recipe of the choice is not complete: $(diff all written | grep '^[<>]' | tr '\n' ' ')"
    [ "$(samples s.json)" = 8 ] || fail "tokens per step moved: $(samples s.json | tr '\n' ' ')"
    [ "$(names s.json | sort -u | wc -l)" -gt 1 ] || fail "one setting was looked at"
    json s.json 'd["chosen"]["steps"] > 0 and d["recipe"] == "tuned.yaml" and d["report"] == "tuned.html" and "error" not in d' "--json"
    json s.json 'all(s["reason"] for s in d["settings"] if s["outcome"] != "measured" and not s["chosen"])' "reasons"
    [ -s tuned.html ] || fail "no page"
    run 0 "it trains" train tuned.yaml steps=3
    says out "3 steps, to step 3" "it trains"
    [ -e runs/tuned ] || fail "the run is not named after its recipe"
    run 0 "it shows" show tuned.yaml
    run 0 "its trials" trials last --store s.db -o json
    json out 'd and all(t["outcome"] and (t["reason"] or t["outcome"] == "measured") for t in d)' "its trials"
    json out 'all((t["outcome"] == "dominated") == (t["reason"] == "another setting is surely better") for t in d)' "its outcomes"
    run 0 "by number" trials 1 --store s.db --json n.json
    says out "bulk of tiny, budgets {}, done" "by number"
    says out "chosen    trial" "by number"
    json n.json 'd["tuning"]["verdict"] == json.load(open("s.json"))["verdict"]' "by number"
    json n.json '"\nverdict   " + "\n          ".join(d["tuning"]["verdict"]) + "\n" in open("out").read()' "by number"
}

searched() {
    plain
    reuse
}

# The same search again, then cases in which settings must be measured again.
reuse() {
    run 0 "the same again" tune r.yaml --busy count --time 1500ms --store s.db --json again.json
    reused=$(field again.json reused)
    [ "$reused" -ge 1 ] || fail "the same again: $reused trials were used again"
    # All trials of the first search are reused, if both searches planned the setting. Settings with
    # a single changed knob depend on where the search started from.
    json again.json 'all(s["reused"] for s in d["settings"] if s["stage"] == "memory" and s["name"] in
               [x["name"] for x in json.load(open("s.json"))["settings"] if x["steps"]])' "the same again"
    says out "$reused of $(field again.json trials) trials came from the store" "the same again"
    [ "$(field again.json tuning)" = 2 ] || fail "a search that had ended was continued"
    run 0 "the list" trials --store s.db -o jsonl
    [ "$(grep -c '"chosen":[0-9]' out)" -eq 2 ] || fail "a choice that was measured before is not in the list"
    run 0 "its page" report --tuning last --store s.db --out again.html
    grep -q 'Nothing was chosen' again.html && fail "a choice that was measured before is not on the page"

    run 0 "a model" train r.yaml steps=1 run.dir=m
    run 0 "a folder" export m m1
    yes 'to be or not to be, that is the question' | head -500 >a.txt
    local common=(tune r.yaml --busy count batch.micro=1 batch.accum=1 seq=8 --time 150ms --store d.db --report none --json d.json)
    run 0 "of a folder" "${common[@]}" model=m1 data.path=a.txt
    [ "$(field d.json reused)" = 0 ] || fail "of a folder: used again"
    cp -rp m1 elsewhere
    cp -p a.txt b.txt
    run 0 "elsewhere" "${common[@]}" model=elsewhere data.path=b.txt
    [ "$(field d.json reused)" -gt 0 ] || fail "the same model and data elsewhere: not used again"
    run 0 "another seq" "${common[@]}" model=m1 data.path=a.txt seq=4
    [ "$(field d.json reused)" = 0 ] || fail "another seq: used again"
    echo 'whether it is nobler' >>b.txt
    run 0 "other data" "${common[@]}" model=m1 data.path=b.txt
    [ "$(field d.json reused)" = 0 ] || fail "other data: used again"
    sed -i 's/"rms_norm_eps": *[^,]*/"rms_norm_eps": 0.0001/' elsewhere/config.json
    cmp -s m1/config.json elsewhere/config.json && fail "the other shape is the same"
    run 0 "another shape" "${common[@]}" model=elsewhere data.path=a.txt
    [ "$(field d.json reused)" = 0 ] || fail "another shape: used again"
}

allow() {
    # If nothing fits, settings are planned but not measured, so the list of settings does not
    # depend on time.
    local list=(tune r.yaml --busy count --memory 1MiB --time 20s --store none --save no.yaml --report none --json a.json)
    run 3 "nothing" "${list[@]}"
    names a.json | grep -qE 'precision=|optim.state=|seq=|optim.lr=' && fail "what was not allowed is a setting"
    [ "$(samples a.json)" = 8 ] || fail "tokens per step moved: $(samples a.json | tr '\n' ' ')"
    run 3 "precision" "${list[@]}" --allow precision
    names a.json | grep -q 'precision=bf16' || fail "--allow precision: no setting"
    names a.json | grep -q 'optim.state=' && fail "--allow precision: the optimizer's state moved"
    [ "$(samples a.json)" = 8 ] || fail "--allow precision: tokens per step moved"
    run 3 "state" "${list[@]}" --allow state
    names a.json | grep -q 'optim.state=int8' || fail "--allow state: no setting"
    names a.json | grep -q 'precision=' && fail "--allow state: the precision moved"
    run 3 "batch" "${list[@]}" --allow batch
    [ "$(samples a.json | tr '\n' ' ')" = "1 2 4 8 " ] || fail "--allow batch without a noise scale: $(samples a.json | tr '\n' ' ')"
    says err "larger batches are not tried" "--allow batch"
    run 3 "tokens per step" "${list[@]}" --tokens-per-step 96
    json a.json 'd["config"]["batch.micro"] * d["config"]["batch.accum"] == 6' "--tokens-per-step 96"
    run 3 "tokens per step" "${list[@]}" --tokens-per-step 4194304
    json a.json 'd["config"]["batch.micro"] * d["config"]["batch.accum"] == 262144' "--tokens-per-step 4194304"
    # The same for a search that measures.
    run 0 "all of it" tune r.yaml --busy count --allow precision,state,batch --time 2s --store none --save allow.yaml --report none --json a.json
    says err "gradient noise scale: " "all of it"
    json a.json 'd["noise_scale"]["measurements"] >= 5' "all of it"
    run 0 "train with it" train allow.yaml steps=1 run.dir=allowed
}

memory() {
    # If nothing fits there is no recipe and no trial, but every setting with its bytes.
    local common=(tune r.yaml --busy count batch.micro=8 batch.accum=1 seq=64 --report none --json m.json) need most least budget
    run 3 "nothing fits" "${common[@]}" --memory 1MiB --time 1s --store n.db --save n.yaml
    says err "nothing was chosen: nothing fits" "nothing fits"
    [ -e n.yaml ] && fail "nothing fits: a recipe"
    json m.json 'd["chosen"] is None and d["error"]["code"] == "ERR_MEMORY"' "nothing fits"
    [ "$(rows n.db)" -eq 0 ] || fail "nothing fits: a trial"
    # A budget in the middle of what the settings need, with head-room as in docs/tuner.md.
    need=$(sed -n 's/.*"memory_needed_bytes": \([0-9]*\).*/\1/p' m.json | sort -n)
    least=$(echo "$need" | head -1) most=$(echo "$need" | tail -1)
    budget=$(awk -v n=$(((least + most) / 2)) 'BEGIN { b = n * 8 / 7; if (b > 67108864) b = n + 8388608; printf "%.0f", b }')
    run 0 "a budget" "${common[@]}" --memory "$budget" --time 1s --store m.db --save lean.yaml
    grep -q '"outcome": "refused"' m.json || fail "a budget that only some fit refused nothing"
    grep -E '"reason": "needs [0-9.]+ [KMG]iB, more than the budget of' m.json | grep -q head-room || fail "refused without its bytes"
    [ "$(values lean.yaml | awk '/^memory/ { print $2 }')" != 0 ] || fail "the budget is not in the recipe"
    json m.json "d['chosen']['memory_needed_bytes'] <= $budget and d['chosen']['outcome'] != 'refused'" "a budget"
    run 0 "it fits" train lean.yaml steps=2 run.dir=lean
    run 0 "it fits" show lean.yaml
}

# bound FILE PERCENTILE LEAST ENOUGH: checks that with ENOUGH steps the budget is proven, and never
# with fewer than LEAST.
bound() {
    json "$1" "[(b['proven'] or b['n'] < $4) and (not b['proven'] or (b['n'] >= $3 and b['upper95_ms'] <= b['limit_ms']))
               for b in d['budgets'] if b['percentile'] == 'p$2'] == [True]" "p$2"
}

latency() {
    run 0 "too little time" tune r.yaml --busy count seq=64 batch.micro=4 --p99 100s --time 200ms --store none --save l.yaml --report none --json l.json
    grep -qE 'p99 unbounded, n=[0-9]+: the choice is provisional' out || fail "too little time: $(tail -3 out)"
    [ "$(field l.json provisional)" = true ] || fail "too little time: not provisional"
    json l.json 'd["budgets"][0]["n"] < 299 and not d["budgets"][0]["proven"]' "too little time"
    run 0 "enough" tune r.yaml --busy count seq=8 batch.micro=1 batch.accum=1 --p50 9s --p95 9s --time 1500ms --store none --save l.yaml --report none --json l.json
    bound l.json 50 5 40
    bound l.json 95 59 200
    json l.json 'd["provisional"] == any(not b["proven"] for b in d["budgets"])' "enough"
    # shellcheck disable=SC2016 # an awk program
    if [ "$(awk '/"percentile": "p95"/ { on = 1 } on && /"n":/ { print $2 + 0; exit }' l.json)" -ge 200 ]; then
        [ "$(field l.json provisional)" = false ] || fail "enough: provisional"
        grep -qE 'p95 .* with 95 % confidence\): under the budget of 9000 ms' out || fail "enough: p95 is not proven"
    fi
    run 3 "impossible" tune r.yaml --busy count --p99 1us --time 5s --store i.db --save i.yaml --json i.json
    says err "nothing was chosen: no setting that was measured keeps the budgets" "impossible"
    says out "over budget: p99 is" "impossible"
    [ -e i.yaml ] && fail "impossible: a recipe"
    [ -s i.html ] || fail "impossible: no page"
    json i.json 'd["chosen"] is None and d["error"]' "impossible"
    # What could be had is said, and the page of an earlier search stays as it is.
    grep -qE 'the least p99 of a step that was measured is [0-9.]+ ms \(.*, n=[0-9]+\), the budget 0.001 ms' err ||
        fail "impossible: the least p99 is not named"
    echo earlier >i.html
    run 3 "impossible again" tune r.yaml --busy count --p99 1us --time 2s --store none --save i.yaml
    [ "$(cat i.html)" = earlier ] || fail "impossible again: the page of an earlier search was replaced"
    run 0 "impossible" trials last --store i.db
    says out "over_budget: a budget is surely broken" "impossible"
}

killed() {
    # kill -9, then the same command. (--time is not part of the request. The search must not end
    # before it is killed: the proof of a budget takes 340 steps, however few settings are worth a
    # trial.)
    begin k.db --p99 10s --time 20s --save k.yaml
    wait_rows k.db 3
    children=$(pgrep -P "$pid")
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null
    [ -n "$children" ] || fail "no worker was there"
    # shellcheck disable=SC2086 # several
    gone "after kill -9" $children
    run 0 "the list" trials --store k.db
    says out "interrupted" "after kill -9"
    "$haggle" trials last --store k.db -o jsonl -q >before
    run 0 "going on" tune r.yaml --busy count --store k.db --p99 10s --time 5s --save k.yaml --json k.json
    says err "search 1 was not finished; continuing with its trials" "going on"
    [ "$(field k.json tuning)" = 1 ] || fail "going on: another number"
    # All first trials are reused, as far as there is time to plan their settings. A second trial of
    # a setting may not be.
    [ "$(field k.json reused)" -ge 2 ] || fail "going on: $(field k.json reused) of $(wc -l <before) trials were used"
    "$haggle" trials last --store k.db -o jsonl -q >after
    head -n "$(wc -l <before)" after | cmp -s - before || fail "going on: earlier rows changed"
    repeated k.db "going on"
    [ -s k.yaml ] || fail "going on: no recipe"
    run 0 "the list" trials --store k.db -o jsonl
    grep -q '"state":"done"' out || fail "going on: not done at the end"
}

stopped() {
    begin i.db --p99 10s --time 20s --save i.yaml --json i.json
    wait_rows i.db 2
    children=$(pgrep -P "$pid")
    kill -INT "$pid"
    wait "$pid"
    status=$?
    [ "$status" -eq 75 ] || fail "SIGINT: exit status $status, expected 75"
    # shellcheck disable=SC2086 # several
    gone "after SIGINT" $children
    says bg.err "stopped on request" "SIGINT"
    json i.json 'd["error"]["code"] == "ERR_STOPPED" and d["chosen"] is None' "SIGINT"
    [ -e i.yaml ] && fail "SIGINT: a recipe"
    run 0 "SIGINT" trials --store i.db -o jsonl
    grep -q '"state":"stopped"' out || fail "SIGINT: the store does not say stopped"
    run 0 "after SIGINT" tune r.yaml --busy count --store i.db --p99 10s --time 1s --save i.yaml --json i.json
    [ "$(field i.json tuning)" = 1 ] || fail "SIGINT: another number"
    repeated i.db "after SIGINT"
    run 0 "after SIGINT" trials --store i.db -o jsonl
    grep -q '"state":"done"' out || fail "after SIGINT: not done"
}

lost_worker() {
    begin w.db --time 3s --save w.yaml
    wait_rows w.db 1
    # A worker that ends between two trials costs no trial. The next process is started for a trial
    # and killed during it.
    local killed='' child children='' n=0
    for _ in $(seq 1000); do
        child=$(pgrep -P "$pid") || { kill -0 "$pid" 2>/dev/null || break; }
        if [ -n "$child" ] && [ "$child" != "$killed" ]; then
            kill -KILL "$child"
            killed=$child n=$((n + 1))
            [ "$n" -eq 2 ] && break
        fi
    done
    [ "$n" -ge 1 ] || fail "no worker was there"
    for _ in $(seq 100); do
        children="$children $(pgrep -P "$pid")"
        sleep 0.05
        kill -0 "$pid" 2>/dev/null || break
    done
    wait "$pid"
    status=$?
    [ "$status" -eq 0 ] || fail "a killed worker: exit status $status"
    # shellcheck disable=SC2046,SC2086 # several
    gone "after the end" $(printf '%s\n' $children | sort -u)
    run 0 "a killed worker" trials last --store w.db --outcome killed -o jsonl
    grep -q '"outcome":"killed","reason":"the kernel killed its process' out || fail "a killed worker: no row that says so"
    [ "$(rows w.db)" -ge 2 ] || fail "a killed worker: nothing but it"
    [ -s w.yaml ] || fail "a killed worker: no recipe"
}

# refuse STATUS TEXT ARGUMENT...: checks the exit status and the message, and that nothing is left
# behind.
refuse() {
    local wanted=$1 text=$2
    shift 2
    mkdir -p left
    run "$wanted" "$*" tune r.yaml --busy count --time 1s --store left/s.db --save left/t.yaml --json refused.json "$@"
    says err "$text" "$*"
    grep -q '^ *"text": "..*"' refused.json || fail "$*: no error in --json"
    [ -z "$(ls -A left)" ] || fail "$*: left behind: $(ls left)"
    rm -rf left
}

hostile() {
    mkdir folder
    refuse 2 "--time=0; accepted: a time above 0" --time 0
    refuse 2 "'-3s' is not a duration" --time -3s
    refuse 2 "'nan' is not a duration" --time nan
    refuse 2 "'3' is not a duration; write a number and ns, us, ms, s, m or h" --time 3
    refuse 2 "--p99=0; accepted: a time above 0" --p99 0
    refuse 2 "--p95: 'soon' is not a duration" --p95 soon
    refuse 2 "--goal=nonsense; accepted: bulk, interactive, hybrid" --goal nonsense
    refuse 2 "--respond=2s with goal bulk" --respond 2s
    refuse 2 "--energy=0; accepted: joules per token, above 0" --energy 0
    refuse 2 "'nan' is not a number" --energy nan
    refuse 2 "--allow=quant; accepted: precision, state, batch" --allow precision,quant
    refuse 2 "--tokens-per-step=100; accepted: a multiple of seq (16), as 112" --tokens-per-step 100
    refuse 2 "--tokens-per-step=0 is not accepted" --tokens-per-step 0
    refuse 2 "--tokens-per-step=1000000000000 is 62500000000 sequences" --tokens-per-step 1000000000000
    refuse 2 "batch.micro='0' is not accepted" batch.micro=0
    refuse 1 "--save=nowhere/t.yaml: there is no folder 'nowhere'" --save nowhere/t.yaml
    refuse 1 "--report=nowhere/t.html: there is no folder 'nowhere'" --report nowhere/t.html
    refuse 2 "--save=folder is a folder" --save folder
    refuse 2 "accepted: the path of a file" --save ''
    mkfifo pipe
    refuse 2 "--save: 'pipe' is a pipe" --save pipe --report none
    refuse 2 "--report: 'pipe' is a pipe" --report pipe
    [ -p pipe ] || fail "a pipe was replaced"
    refuse 2 "are the same file" --save same.html --report ./same.html
    refuse 2 "is the store" --save ./same.db --store same.db
    run 0 "a store that is linked to" tune r.yaml --busy count --time 150ms --store real.db --save no.yaml --report none
    ln -s real.db link.db && rm no.yaml
    refuse 2 "is the store" --save real.db --store link.db
    mkdir -p data/haggle
    XDG_DATA_HOME="$PWD/data" "$haggle" tune r.yaml --busy count --time 150ms --save data/haggle/trials.db --report none >out 2>err && fail "the user's store was replaced"
    says err "is the store" "the user's store"
    run 0 "a recipe that ends in .html" tune r.yaml --busy count --time 150ms --store none --save same.html
    says same.html "batch:" "a recipe that ends in .html"
    says same.html.html "<html" "a recipe that ends in .html"
    : >empty.txt
    refuse 2 "empty.txt: the file is empty" data.path=empty.txt
    refuse 1 "missing.txt: there is no such file" data.path=missing.txt
    refuse 2 "no-such-model" model=no-such-model
    run 1 "no recipe" tune missing.yaml --store none
    says err "cannot open 'missing.yaml'" "no recipe"
    run 2 "a folder for a recipe" tune folder --store none
    says err "'folder' is a directory" "a folder for a recipe"
    # If there is a meter, this much energy is no limit.
    "$haggle" tune r.yaml --busy count --energy 1e9 --time 150ms --store none --save energy.yaml --report none >out 2>err || {
        says err "--energy=1e+09 needs an energy meter, and this machine has none: " "no meter"
        [ -e energy.yaml ] && fail "no meter: a recipe"
    }
    # A file that is not a store stays unchanged, and no data is read for it.
    echo 'a letter to a friend' >letter
    refuse 1 "'letter' is not a store of trials" --store letter
    [ "$(cat letter)" = 'a letter to a friend' ] || fail "a letter was written to"
    refuse 2 "'folder' is not a regular file" --store folder
    refuse 2 "the name of the store of trials is empty" --store ''
    # Root may write everything, so this runs as another user, if possible.
    local as=()
    [ "$(id -u)" -eq 0 ] && as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
    mkdir theirs
    run 0 "a store" bench r.yaml --steps 1 --repeat 1 --store theirs/s.db
    cp r.yaml theirs
    chmod 755 "$here"
    chmod 444 theirs/s.db
    chmod 777 theirs
    if "${as[@]}" test -x "$haggle" 2>/dev/null && ! "${as[@]}" test -w theirs/s.db; then
        (cd theirs && timeout 60 "${as[@]}" "$haggle" tune r.yaml --busy count --time 1s --store s.db --save t.yaml >out 2>err)
        [ $? -eq 1 ] || fail "a read-only store: wrong exit status"
        says theirs/err "the store 's.db' cannot be written" "a read-only store"
        [ -e theirs/t.yaml ] && fail "a read-only store: a recipe"
    fi
}

hybrid() {
    # A recipe for a hybrid run with a budget is tuned for hybrid without a flag.
    { cat r.yaml && echo 'goal: hybrid' && echo 'interactive: {respond: 1us}'; } >h.yaml
    run 3 "no answer is so quick" tune h.yaml --busy count --time 1s --store none --save no.yaml --report none --json h.json
    says err "requests answered within 0.001 ms; no setting" "no answer is so quick"
    says out "over budget: a request" "no answer is so quick"
    [ -e no.yaml ] && fail "no answer is so quick: a recipe"
    # A limit shorter than a whole micro-batch of eight, according to this machine's measurements:
    # the chosen setting keeps it, and settings that do not are over the budget.
    step=$(awk '/"step_ms_p50"/ { on = 1 } on && /"value"/ { print $2 + 0; exit }' h.json)
    run_hybrid=(tune r.yaml --busy count batch.micro=8 batch.accum=1 --goal hybrid --time 1s --store none --report none --json h.json)
    "$haggle" "${run_hybrid[@]}" --respond "$(awk -v s="$step" 'BEGIN { print 0.7 * s }')ms" --save tight.yaml >out 2>err
    status=$?
    [ "$status" -eq 0 ] || [ "$status" -eq 3 ] || fail "a tight budget: exit status $status"
    # (This formula leaves out the update, for which a request waits, too. For a provisional choice
    # the typical step counts.)
    cat >wait.txt <<PYTHON
all(w("step_ms_p95", s) > 0.8 * 0.7 * $step for s in over) and (
    w("step_ms_p50", d["chosen"]) <= 0.7 * $step if d["chosen"] else len(over) > 0)
    for over in [[s for s in d["settings"] if s["steps"] and s["outcome"] == "over budget"]]
    for w in [lambda p, s: s[p]["value"] * (1 + 1 / int(s["changes"].get("batch.micro", 8))) / int(s["changes"].get("batch.accum", 1))]
PYTHON
    json h.json "all($(cat wait.txt))" "a tight budget"
    run 0 "a generous budget" "${run_hybrid[@]}" --respond 9s --save wide.yaml
    [ "$(values wide.yaml | awk '/^goal/ { print $2 }')" = hybrid ] || fail "the recipe is not hybrid"
    [ "$(values wide.yaml | awk '/^interactive.respond/ { print $2 }')" != 0 ] || fail "the recipe has no budget for answers"
    echo '{"evaluate": {"text": "to be"}, "id": 1}' | timeout 60 "$haggle" train wide.yaml --goal hybrid steps=3 >out 2>err ||
        fail "the hybrid recipe does not run: $(tail -1 err)"
    says out '"id":1,"evaluate":true' "the hybrid recipe"
}

# The parts run in two lanes, each in a separate folder: most of the time is waiting, and no time is
# judged.
lane() {
    for part in "$@"; do
        mkdir "$here/$part" && cd "$here/$part" && cp ../r.yaml . || exit 1
        before=$SECONDS failures=0
        $part
        echo "$part: $((SECONDS - before)) s, $failures failures"
    done
}
(lane killed lost_worker allow memory) >one 2>&1 &
(lane searched stopped latency hybrid hostile) >two 2>&1
wait
cat one two
failures=$(awk '/ s, [0-9]+ failures$/ { n += $(NF - 1); ends++ } END { print n + (ends != 9) }' one two)
finish
