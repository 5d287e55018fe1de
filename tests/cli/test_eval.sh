#!/usr/bin/env bash
# test_eval.sh - models measured on data from the outside: the figures, two models beside each other,
# adapters, other tokenizers, and what is refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
reference=$source_tree/tests/reference
quiet="device=cpu data.cache=none"

# ---------------------------------------------------------------- a run, and text as bytes

for i in $(seq 30); do
    echo "{\"prompt\": \"What is $i?\", \"completion\": \"A number, and $((i * i)) is its square.\"}"
done >squares.jsonl
train="device=cpu data.cache=none eval.every=0 save.every=0 generate.tokens=0 -q"
# shellcheck disable=SC2086 # several words
run 0 "a run" train model=tiny $train data.path=squares.jsonl seq=48 steps=8 optim.lr=1e-2 run.dir=run
# shellcheck disable=SC2086
run 0 "a run of one step" train model=tiny $train data.path=squares.jsonl seq=48 steps=1 run.dir=young

# shellcheck disable=SC2086
run 0 "one model" eval run --data squares.jsonl $quiet --json one.json
says out "data       squares.jsonl: completion, 30 records" "the data"
says out "scored     30 records, 978 tokens of 1299, 948 bytes of text" "what was scored"
says out "nats per token (95 % interval " "the loss"
says out "bits/byte  " "bits per byte"
says out "The intervals count the 30 records, not their tokens, as independent" "the unit"
json one.json 'd["verb"] == "eval" and d["unit"] == "record" and d["comparisons"] == []' "the result"
json one.json 'd["models"][0]["scored_tokens"] == 978 and d["models"][0]["scored_bytes"] == 948' "counts"
json one.json 'abs(d["models"][0]["loss"] / 0.6931471805599453 * 978 / 948 - d["models"][0]["bits_per_byte"]) < 1e-9' "bits"
json one.json 'd["models"][0]["loss_interval"][0] < d["models"][0]["loss"] < d["models"][0]["loss_interval"][1]' "the interval"
# shellcheck disable=SC2086
run 0 "prompts too" eval run --data squares.jsonl $quiet data.loss=all --json all.json
json all.json 'd["models"][0]["scored_tokens"] == d["models"][0]["tokens"] == 1299' "data.loss=all"

# shellcheck disable=SC2086
run 0 "two models" eval young run --data squares.jsonl $quiet --json two.json
says out "run against young: " "the comparison"
says out "The interval leaves out 0: the two models differ. Lower in 30 of 30 records, higher in 0" "the verdict"
json two.json 'd["comparisons"][0]["verdict"] == "better" and d["comparisons"][0]["measure"] == "nats per token"' "the verdict"
json two.json 'abs(d["comparisons"][0]["difference"] - d["models"][1]["loss"] + d["models"][0]["loss"]) < 1e-9' "the difference"
# shellcheck disable=SC2086
run 0 "a model and itself" eval run run/checkpoints/step-000000008 --data squares.jsonl $quiet --json same.json
says out "the same in all 30 records" "a model and itself"
json same.json 'd["comparisons"][0]["verdict"] == "no difference shown" and d["comparisons"][0]["ties"] == 30' "a model and itself"

# --best means the runs among the models.
# shellcheck disable=SC2086
run 0 "a run with a best checkpoint" train model=tiny ${train/eval.every=0/eval.every=4} data.path=squares.jsonl \
    seq=48 steps=8 save.best=true run.dir=best
run 0 "its folder" export best whole
# shellcheck disable=SC2086
run 0 "the best" eval whole best --best --data squares.jsonl $quiet --json best.json
json best.json 'd["models"][1]["weights"].startswith("best/checkpoints/")' "the best"

# ---------------------------------------------------------------- adapters, and data of ids

mkdir base && cp "$reference"/qwen2/{config.json,model.safetensors} base
# shellcheck disable=SC2086
run 0 "an adapter" train model=base tokenizer=bytes $train data.path=squares.jsonl seq=48 steps=8 \
    optim.lr=0.01 lora.rank=2 run.dir=adapted
run 0 "an adapter's folder" export adapted peft
# shellcheck disable=SC2086
run 0 "a run of an adapter" eval base adapted --data squares.jsonl tokenizer=bytes $quiet --json run.json
# shellcheck disable=SC2086
run 0 "an adapter of PEFT's" eval base base --adapter peft --data squares.jsonl tokenizer=bytes $quiet --json peft.json
says out "base with peft against base: " "an adapter"
json run.json 'd["comparisons"][0]["verdict"] == "better"' "an adapter"
json run.json 'abs(d["models"][1]["loss"] - json.load(open("peft.json"))["models"][1]["loss"]) < 1e-5' "two ways to the same adapter"
json peft.json 'd["models"][0]["loss"] == json.load(open("run.json"))["models"][0]["loss"]' "the base beside its adapter"

for i in 1 2 3 4; do echo "{\"input_ids\": [$i, 20, 3$i, 5, 100, $i]}"; done >ids.jsonl
# shellcheck disable=SC2086
run 0 "ids" eval "$reference/qwen2" "$reference/qwen3" --data ids.jsonl $quiet --json ids.json
json ids.json 'd["models"][0]["scored_tokens"] == 20 and d["models"][0]["scored_bytes"] is None and d["models"][0]["bits_per_byte"] is None' "ids"
# shellcheck disable=SC2086
run 1 "ids of other vocabularies" eval "$reference/qwen2" "$reference/gpt2-odd" --data ids.jsonl $quiet
says err "have different vocabularies" "ids of other vocabularies"

# ---------------------------------------------------------------- what is refused

refuses() { # refuses STATUS TEXT ARGUMENT...
    local status=$1 text=$2
    shift 2
    # shellcheck disable=SC2086
    run "$status" "$text" eval "$@" $quiet
    says err "$text" "haggle eval $*"
}
: >empty.jsonl
echo '{"input_ids": [1, 2, 400]}' >far.jsonl
echo '{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}' >untrained.jsonl
echo 'Some text.' >text.txt
mkdir -p unsaved/checkpoints
refuses 2 "which data? accepted: haggle eval FOLDER ... --data FILE" run
refuses 2 "which model? accepted" --data squares.jsonl
refuses 2 "data.path=text.txt and --data squares.jsonl are both given" run --data squares.jsonl data.path=text.txt
refuses 2 "empty.jsonl: the file is empty" run --data empty.jsonl
refuses 1 "nowhere.jsonl" run --data nowhere.jsonl
refuses 1 "input_ids[2] is 400; the model has a vocabulary of 331" "$reference/qwen2" --data far.jsonl
refuses 2 "none of its 1 documents has a trained token" "$reference/qwen2" --data untrained.jsonl
refuses 1 "unsaved holds no checkpoint yet" unsaved --data squares.jsonl
refuses 1 "does not exist or is not a folder" "$reference/nothing" --data squares.jsonl
refuses 2 "has no tokenizer.json" "$reference/qwen2" --data squares.jsonl
refuses 2 "seq=4096 is more than the 512 positions" run --data squares.jsonl seq=4096
refuses 2 "the built-in corpus has no end and no files" run --data synthetic
refuses 2 "is an adapter already" base adapted --adapter peft --data squares.jsonl

# ---------------------------------------------------------------- a model that learned a language

lm=$source_tree/../shared/fixtures/lm
if [ ! -f "$lm/text/tinystories_val.jsonl" ]; then
    echo "not tested: a model with a tokenizer; $lm is missing"
    finish
fi
# 1.507 is the figure of another implementation, with float32 sums of its own. The last digit is
# rounded, and it may count one token more or less of a story that is cut.
# shellcheck disable=SC2086
run 0 "all stories" eval "$lm/stories260K" --data "$lm/text/tinystories_val.jsonl" $quiet --json stories.json
json stories.json 'abs(d["models"][0]["loss"] - 1.507) < 0.001' "the loss of all stories"
json stories.json 'd["models"][0]["scored_units"] == 952 and d["models"][0]["seq"] == 512' "all stories"
json stories.json 'd["models"][0]["scored_tokens"] + d["models"][0]["cut_scored_tokens"] == 390339' "what was cut off"

# The other spelling of its vocabulary gives the same tokens and the same bytes.
head -60 "$lm/text/tinystories_val.jsonl" >stories.jsonl
mkdir spelled && cp "$lm"/stories260K/* spelled && chmod u+w spelled/*
cp spelled/tokenizer.spm.json spelled/tokenizer.json
# shellcheck disable=SC2086
run 0 "another spelling" eval "$lm/stories260K" spelled --data stories.jsonl $quiet --json spelled.json
says out "the same in all 60 records" "another spelling"
json spelled.json 'd["models"][0]["scored_bytes"] == d["models"][1]["scored_bytes"]' "another spelling"
# Whole records in pieces: every byte of the text is scored.
# shellcheck disable=SC2086
run 0 "in pieces" eval spelled --data stories.jsonl data.long=split $quiet --json split.json
json split.json 'd["models"][0]["scored_bytes"] == sum(len(json.loads(l)["text"].encode()) for l in open("stories.jsonl"))' "the bytes"

# A model that reads bytes: the text is the same, its tokens are not.
# shellcheck disable=SC2086
run 0 "other tokens" eval "$lm/stories260K" run --data stories.jsonl data.long=split $quiet --json other.json
says out "their tokens differ, so bits per byte of the same text are compared" "other tokens"
json other.json 'd["comparisons"][0]["measure"] == "bits per byte" and d["comparisons"][0]["losses"] == 60' "other tokens"
json other.json 'd["models"][0]["scored_bytes"] == d["models"][1]["scored_bytes"]' "the same text"
head -c 20000 "$lm/text/tinyshakespeare.txt" >play.txt
# shellcheck disable=SC2086
run 0 "other tokens of a plain text" eval "$lm/stories260K" run --data play.txt $quiet --json play.json
says out "of plain text in stretches of 2048 bytes" "other tokens of a plain text"
json play.json 'd["unit"] == "sequence" and d["comparisons"][0]["units"] == 10' "stretches"
json play.json 'abs(d["comparisons"][0]["difference"] - d["models"][1]["bits_per_byte"] + d["models"][0]["bits_per_byte"]) < 1e-3' "stretches"
finish
