#!/usr/bin/env bash
# test_care.sh - what people see of a run that is taken care of: the best checkpoint in the log, the
# summary, the result, the report, export and generate; the end of patience; a run that diverges.
. "$(dirname "$0")/lib.sh" "$@"

tiny=(train model=tiny seq=32 batch.micro=2 eval.batches=2 generate.tokens=0 device=cpu threads=1 data.val=0.05)
# Validations get better, then worse.
wave=("${tiny[@]}" steps=40 eval.every=4 optim.lr=0.1 sched.warmup=40)

run 2 "save.best without validations" "${tiny[@]}" save.best=true eval.every=0
says err "save.best looks at validations" "save.best without validations"
run 2 "show refuses, too" show model=tiny save.best=true eval.every=0
says err "save.best looks at validations" "show refuses, too"

run 0 "save.best" "${wave[@]}" save.best=true run.dir=best --json best.json
says err ", the best so far" "save.best"
says err "saved best/checkpoints/step-" "save.best"
says out "best      validation " "save.best"
json best.json 'd["run"]["end"] == "done" and 4 <= d["best"]["step"] < 40 and d["best"]["validations_since"] > 0' "save.best"
json best.json 'd["best"]["checkpoint"] == "best/checkpoints/step-%09d" % d["best"]["step"]' "save.best"
json best.json 'd["best"]["validation_loss"] < d["validation"]["loss"]' "save.best"
grep '"event":"eval"' best/log.jsonl | head -1 >line.json
json line.json 'd["best"] is True' "the first validation in log.jsonl"
grep '"event":"eval"' best/log.jsonl | tail -1 >line.json
json line.json 'd["best"] is False' "the last validation in log.jsonl"
grep '"event":"save"' best/log.jsonl | head -1 >line.json
json line.json 'd["best"] is True' "a save in log.jsonl"
step=$(basename "$(ls -d best/checkpoints/step-* | head -1)")
run 0 "report" report best --out report.html
grep -q "best/checkpoints/$step" report.html || fail "the report does not name the best checkpoint"

run 0 "export --best" export best best-hf --best --json export.json
json export.json "d['checkpoint'].endswith('$step')" "export --best"
run 0 "export" export best newest-hf --json export.json
json export.json "d['step'] == 40" "export of the newest"
run 0 "--check of it" export --check best-hf best
run 2 "--check --best" export --check best-hf best --best
run 0 "generate --best" generate best --best --prompt a --tokens 8
cp out best.txt
run 0 "generate from its folder" generate "best/checkpoints/$step" --prompt a --tokens 8
cmp -s out best.txt || fail "generate --best is not the best checkpoint"
run 0 "a run without save.best" "${tiny[@]}" steps=2 eval.every=0 run.dir=plain
run 2 "export --best of it" export plain plain-hf --best
says err "save.best=true" "export --best of a run without one"
[ -e plain-hf ] && fail "a refused export left a folder"
run 2 "generate --best of it" generate plain --best

run 0 "patience" "${wave[@]}" stop.patience=2 run.dir=patience --json patience.json
says err "the last 2 validations had no better loss (the best is " "patience"
says out "; no better validation (stop.patience)" "patience"
json patience.json 'd["run"]["end"] == "patience" and d["best"]["validations_since"] == 2 and d["run"]["step"] < 40' "patience"
json patience.json 'd["best"]["checkpoint"] is None and d["run"]["checkpoint"]' "patience saves its end"
run 0 "patience is over" "${wave[@]}" stop.patience=2 run.dir=patience
says out "trained   0 steps" "patience is over"
json patience/result.json 'd["run"]["steps_run"] > 0' "a run that does nothing keeps the result"
run 0 "more patience" "${wave[@]}" stop.patience=0 run.dir=patience --json more.json
json more.json 'd["run"]["end"] == "done" and d["run"]["step"] == 40' "more patience"
run 0 "report of patience" report patience --out report.html

run 1 "diverged" "${tiny[@]}" steps=200 eval.every=0 optim.lr=1 optim.decay=0 sched.warmup=0 run.dir=wild --json wild.json
says err "the run has diverged. Try a lower optim.lr, such as 0.5 (half)" "diverged"
json wild.json 'd["error"]["code"] == "ERR_NUMERIC" and d["run"]["end"] == "diverged" and 100 < d["run"]["step"] < 130' "diverged"
run 1 "diverged on two ranks" "${tiny[@]}" steps=200 eval.every=0 optim.lr=1 optim.decay=0 sched.warmup=0 \
    run.dir=wild2 --ranks 2 comm.engine=thread
says err "the run has diverged" "diverged on two ranks"
finish
