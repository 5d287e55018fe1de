#!/usr/bin/env bash
# test_bad_input.sh - each bad input has its exit status and a message that names the value and what
# is accepted.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# bad STATUS SENTENCE ARGUMENT...
bad() {
    local status=$1 sentence=$2
    shift 2
    run "$status" "haggle $*" "$@"
    says err "$sentence" "haggle $*"
    [ -s out ] && fail "haggle $*: prints a result"
    [ "$(grep -c '^haggle' err)" -eq 1 ] || fail "haggle $*: not one sentence"
}

# flags
bad 2 "unknown flag '--stepz'; did you mean --steps?" train --stepz 3
bad 2 "unknown flag '--jsno'; did you mean --json?" train --jsno -
bad 2 "unknown flag '-z'" train -z
bad 2 "--steps needs a value" train --steps
bad 2 "--quiet=1 takes no value" train --quiet=1
bad 2 "accepted: a number from 1 to 1000" bench --repeat 0
bad 2 "accepted: a number from 1 to 100000" bench --steps many
bad 2 "accepted: md, csv, json, jsonl" bench -o xml
bad 2 "unexpected 'now'" doctor now
bad 1 "cannot be written" knobs --json missing/folder/x.json

# knobs
bad 2 "did you mean 'batch.micro'?" train batch.micor=4
bad 2 "1 to 65536" train batch.micro=0
bad 2 "batch.micro='many'" train --batch-micro many
bad 2 "constant, linear, cosine, wsd" train sched.kind=cosinus
bad 2 "seq=9999 is more than the 512 positions of tiny" train seq=9999
bad 2 "did you mean 'tiny'?" train --model tinny
bad 2 "did you mean 'batch.micro'?" bench batch.micor=1,2
bad 2 "is not a range" bench batch.micro=4-1
bad 2 "is not a range" bench 'batch.micro=1-8*1'
bad 2 "more than 4096" bench seq=1-100 batch.micro=1-100

# names and values that people know from other tools
bad 2 "'learning_rate' is optim.lr here; write optim.lr=2e-5" train learning_rate=2e-5
bad 2 "write optim.lr=2e-5" train --learning-rate 2e-5
bad 2 "write optim.lr=2e-5" train --learning_rate=2e-5
bad 2 "write precision=bf16" train --bf16 --quiet
bad 2 "write lora.rank=8" tune --lora-r 8
bad 2 "the GPU of a Mac has no backend" train device=mps
says err "auto, cpu, cuda" "the devices that there are"
bad 2 "the GPU of a Mac has no backend" train --device mps

# spaces around '='
bad 2 "write optim.lr=1e-4, or '1e-4' first" train optim.lr= 1e-4
bad 2 "steps = needs a value" train steps =
bad 2 "optim.lr='much'" train optim.lr = much
bad 2 "--p95: '40' is not a duration" tune --p95 40

# recipes
printf 'model: tiny\nbatch: [1\n' >broken.yaml
printf 'model: tiny\nbatch:\n  micr: 3\n' >unknown.yaml
printf 'model: tiny\nseq: -5\n' >range.yaml
printf 'seq: 4\nseq: 5\n' >twice.yaml
printf 'model: tiny\nbatch_size: 8\n' >foreign.yaml
printf 'optim: adamw_torch\n' >optimizer.yaml
bad 2 "foreign.yaml:2: 'batch_size' is batch.micro here; write batch.micro: 8" train foreign.yaml
bad 2 "optimizer.yaml:1: no knob is called 'optim': the optimizer is AdamW" train optimizer.yaml
bad 1 "'missing.yaml'" train missing.yaml
bad 2 "broken.yaml: line 3" train broken.yaml
bad 2 "unknown.yaml:3: no knob is called 'batch.micr'" train unknown.yaml
bad 2 "range.yaml:2: " train range.yaml
bad 2 "twice.yaml" train twice.yaml
bad 2 "'unknown.yaml' is one too many" train range.yaml unknown.yaml

# files of the run
bad 1 "missing.txt" train --data missing.txt
: >empty.txt
bad 2 "empty.txt" train --data empty.txt
echo hello >short.txt
bad 2 "short.txt" train --data short.txt seq=64
: >file
bad 1 "log.trace" train log.trace=missing/folder/t.json
mkdir folder
bad 1 "log.trace: 'folder' is a folder" train log.trace=folder
[ -e folder.tmp ] && fail "the check of log.trace left a file behind"
bad 1 "file/run" train steps=1 run.dir=file/run
mkdir model
bad 1 "model" train --model ./model
echo '{' >model/config.json
bad 1 "model/config.json" train --model ./model
ls runs >/dev/null 2>&1 && fail "a refused run left a folder behind"

# memory: the run is refused before memory is taken, with bytes by class, and nothing is written
bad 3 "the budget (memory=) is 1.00 MiB" train --memory 1MiB
for class in weights gradients optimizer activations slack loader saving process; do
    says err "$class" "a budget that is too small"
done
ls runs >/dev/null 2>&1 && fail "a run that does not fit left a folder behind"
# the table and the message give the same sum
total=$(sed -n 's/^  total  *\([0-9.]* [KMG]iB\) .*too much/\1/p' err)
says err "the run needs $total but" "one sum in the table and in the sentence"
bad 3 "what the machine has left" train model=llama-70b seq=1024

# the other verbs
bad 2 "'trian' cannot be measured" bench trian
bad 2 "which folder?" verify
bad 1 "missing" verify missing
bad 2 "--prompt and --ids" generate --prompt a --ids 1
bad 2 "accepted: numbers separated by commas" generate --ids 1,,2
bad 2 "accepted: 0 to 319" generate model=tiny --ids 400
bad 2 "'nothing-here' is neither" generate nothing-here
bad 1 "no/such/folder" generate no/such/folder
bad 2 "which page?" docs
bad 2 "did you mean knobs?" docs knob

# with --json a failure is an object, too
run 3 "a failure as JSON" train --memory 1MiB --json - -q
json out 'd["error"]["code"] == "ERR_MEMORY" and "weights" in d["error"]["text"]' "a failure as JSON"
run 2 "a refusal as JSON" train batch.micor=3 --json refused.json
json refused.json 'd["error"]["code"] == "ERR_USAGE"' "a refusal as JSON"
run 1 "half a result as JSON" verify missing --json -
json out 'd["error"]["code"] == "ERR_IO"' "half a result as JSON"
finish
