#!/usr/bin/env bash
# test_quickstart.sh - docs/quickstart.md, command by command, as a person would type it, in a new
# folder.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

page=$source_tree/docs/quickstart.md
cities=(Paris Rome Oslo Lima Cairo Delhi Tokyo Quito)
for i in $(seq 48); do
    printf '{"messages": [{"role": "user", "content": "What is the capital of country number %d?"}, ' "$i"
    printf '{"role": "assistant", "content": "It is %s."}]}\n' "${cities[i % 8]}"
done >my-data.jsonl

ln -s "$source_tree/recipes" .
mkdir bin
ln -s "$haggle" bin/haggle
awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$page" >commands
[ "$(wc -l <commands)" -ge 10 ] || fail "the page has $(wc -l <commands) commands; did its form change?"
while read -r command; do
    PATH=$PWD/bin:$PATH bash -c "$command" >out 2>err </dev/null || {
        tail -5 err >&2
        fail "quickstart: $command"
    }
    case $command in
    "haggle data"*) says out "trained" "$command" ;;
    "haggle show"*) says out "total" "$command" ;;
    "haggle generate"*) says out "What is" "$command" ;;
    "haggle export"*--gguf*) says out "read back as it is in the source" "$command" ;;
    "haggle export"*) says out "read back as it was trained" "$command" ;;
    esac
done <commands
cmp -s my-model-merged/model.safetensors my-model/model.safetensors && fail "nothing was merged"
[ -s report.html ] || fail "no report"
[ -f my-adapter/adapter_config.json ] || fail "the adapter has no settings"
[ -f my-model-merged/config.json ] || fail "the merged model has no configuration"
[ "$(head -c 4 my-model.gguf)" = GGUF ] || fail "no GGUF file"
[ -f my-model-tuned/tokenizer.json ] || fail "the exported folder has no tokenizer"
finish
