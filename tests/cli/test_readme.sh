#!/usr/bin/env bash
# test_readme.sh - the commands of README.md work as written, one after the other, in a fresh folder.
# Only what takes long is cut short, by arguments at the end. Other tests keep the machine busy.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export XDG_DATA_HOME=$here/data
ln -s "$source_tree/recipes" "$source_tree/tests" .
mkdir -p path/to
for i in $(seq 40); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"What is $i?\"}, {\"role\": \"assistant\", \"content\": \"A number.\"}]}"
done >chat.jsonl
echo '{"text": "a"}' >text.jsonl
run 0 "a model" train steps=1 seq=16 eval.every=0 generate.tokens=0 run.dir=made
run 0 "a model" export made path/to/hf-folder

shorter() { # shorter COMMAND: what to add so that it ends soon
    case $1 in
    train\ recipes/lora*) echo "seq=32 steps=2 batch.accum=1 generate.tokens=0" ;;
    train\ recipes*) echo "model=tiny seq=16 steps=1 batch.accum=1 eval.every=0 generate.tokens=0 save.last=false" ;;
    train*) echo "steps=2 seq=32 eval.every=0" ;;
    generate*) echo "--tokens 4" ;;
    "tune --goal generate"*) echo "--time 3s --busy count --batch 1 --prompt-tokens 8 --output-tokens 8 --itl 9s --kl 9" ;;
    tune*) echo "--time 1s --p99 9s --busy count seq=16" ;;
    bench\ generate*) echo "--output-tokens 2 --repeat 1" ;;
    bench\ tradeoffs*) echo "seq=16 batch.micro=2 --steps 1 --repeat 1 --warmup 0" ;;
    bench*) echo "--steps 1 --repeat 1 --warmup 0" ;;
    knobs\ --check) echo "log.every" ;;
    esac
}
n=0
while read -r command; do
    read -ra words <<<"${command%%<*} $(shorter "$command")"
    for i in "${!words[@]}"; do words[i]=${words[i]//\"/}; done
    input=/dev/null
    [[ $command == *"< text.jsonl" ]] && input=text.jsonl
    run 0 "README: haggle $command" "${words[@]}" <$input
    grep -q "nothing to train" err && fail "README: haggle $command: an earlier command left it nothing to do"
    n=$((n + 1))
done < <(sed -n 's/^    build\/haggle \([^#]*\).*/\1/p' "$source_tree/README.md" | sed 's/ *$//; s/  */ /g')
[ $n -ge 15 ] || fail "only $n commands were found in README.md"
finish
