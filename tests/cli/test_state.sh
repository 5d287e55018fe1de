#!/usr/bin/env bash
# test_state.sh - the optimizer's moments in 4 and 2 bytes per parameter instead of 8: the loss on
# the built-in corpus is within 2 % of that with fp32. With HAGGLE_TEST_LONG it is compared after
# 200 steps with all defaults (docs/numerics.md has the figures), otherwise after 60 small steps.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

size="steps=60 seq=64 batch.micro=2 optim.lr=1e-3"
[ -n "${HAGGLE_TEST_LONG:-}" ] && size="steps=200"
for state in fp32 bf16 int8; do
    # shellcheck disable=SC2086 # $size is several words
    run 0 "a run" train $size optim.state=$state device=cpu eval.every=0 save.every=0 save.last=false generate.tokens=0 \
        run.dir=$state --json $state.json
    json $state.json 'd["run"]["end"] == "done" and d["config"]["optim.state"] == "'$state'"' "$state ran"
done
if command -v python3 >/dev/null; then
    python3 - <<'PYTHON' || fail "narrow moments cost more than 2 % of the loss"
import json, sys
def of(state):
    steps = [json.loads(line) for line in open(state + "/log.jsonl")]
    losses = [s["loss"] for s in steps if "loss" in s and "lr" in s]
    return {"last step": losses[-1], "last 20 steps": sum(losses[-20:]) / 20, "first": losses[0]}
fp32, bad = of("fp32"), False
for state in ("bf16", "int8"):
    for what, x in of(state).items():
        off = x / fp32[what] - 1
        print(f"{state}, {what}: {x:.4f}, fp32 {fp32[what]:.4f}, {100 * off:+.3f} %")
        bad |= not abs(off) < 0.02
    bad |= of(state)["last step"] == fp32["last step"] # equal: the knob has no effect
bad |= not fp32["last 20 steps"] < 0.7 * fp32["first"] # something was learned
sys.exit(bad)
PYTHON
fi

run 0 "bytes" show model=gpt2-124m optim.state=fp32 --json fp32.json
run 0 "bytes" show model=gpt2-124m optim.state=int8 --json int8.json
says out "adamw_int8" "the program names the op"
finish
