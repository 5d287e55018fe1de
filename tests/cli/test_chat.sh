#!/usr/bin/env bash
# test_chat.sh - conversations: the folder's own template, its end of turn, the cache of earlier turns,
# commands, a context that is full, a folder without a template.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
model=$source_tree/tests/reference/qwen3

# A folder with a template of its own. The tokenizer spells bytes and has tokens for turns, of which
# the model makes one that ends its answer.
cp -r "$model" own && chmod -R u+w own
cat >own/chat_template.jinja <<'TEMPLATE'
{% for m in messages %}<{{ m.role }}>{{ m.content }}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}
TEMPLATE
options=(own tokenizer=bytes device=cpu data.template=own/chat_template.jinja --tokens 12)

talk() { # talk STATUS WHAT LINES ARGUMENT...
    local wanted=$1 what=$2 lines=$3 got
    shift 3
    # shellcheck disable=SC2059 # the lines hold \n
    printf "$lines" | timeout 60 "$haggle" chat "$@" >out 2>err
    got=$?
    [ $got -eq "$wanted" ] && return
    fail "$what: exit status $got, expected $wanted"
    sed 's/^/    /' err | tail -5
}

talk 0 "a conversation" 'Hello\nAnd then?\n' "${options[@]}" --json two.json
json two.json '[t["role"] for t in d["turns"]] == ["user", "assistant"] * 2' "the turns"
json two.json 'd["turns"][0]["text"] == "Hello" and d["turns"][2]["text"] == "And then?"' "what the user said"
json two.json 'd["turns"][1]["cached_tokens"] == 0' "the first turn finds no cache"
json two.json 'd["turns"][3]["cached_tokens"] >= d["turns"][1]["prompt_tokens"]' "the second turn finds the first in the cache"
json two.json 'd["speed"]["prompt_tokens"] + d["speed"]["cached_tokens"] == sum(t.get("prompt_tokens", 0) for t in d["turns"])' \
    "every token of a prompt is computed or cached"
json two.json 'd["speed"]["prompt_tokens"] < sum(t.get("prompt_tokens", 0) for t in d["turns"])' "fewer are computed"
says err "from the cache" "speed"
grep -q '^> ' out && fail "a pipe gets a prompt"

# The same conversation, rendered at once by generate, gives the same answer: with and without cache.
if command -v python3 >/dev/null; then
    python3 - <<'PYTHON'
import json
turns = json.load(open("two.json"))["turns"][:3]
messages = [{"role": t["role"], "content": t["text"]} for t in turns]
open("chat.jsonl", "w").write(json.dumps({"messages": messages}) + "\n")
open("first.jsonl", "w").write(json.dumps({"messages": messages[:1]}) + "\n")
PYTHON
    run 0 "the records" generate "${options[@]}" --prompts first.jsonl --prompts first.jsonl --json first.json
    json first.json 'd["text"] == json.load(open("two.json"))["turns"][1]["text"]' "the first answer"
    run 0 "the whole conversation" generate "${options[@]}" --prompts chat.jsonl --json whole.json
    json whole.json 'd["text"] == json.load(open("two.json"))["turns"][3]["text"]' "the second answer, without a cache"
    json whole.json 'd["prompt_tokens"] == json.load(open("two.json"))["turns"][3]["prompt_tokens"]' "the same prompt"
fi
run 0 "generate --chat" generate "${options[@]}" --chat -p Hello --json chat.json
json chat.json 'd["text"] == json.load(open("two.json"))["turns"][1]["text"]' "generate --chat is the first turn"
json chat.json 'd["prompt_tokens"] == len("<user>Hello\n<assistant>")' "what the template writes"
run 0 "a system message" generate "${options[@]}" --chat -p Hello --system Short --json system.json
json system.json 'd["prompt_tokens"] == len("<system>Short\n<user>Hello\n<assistant>")' "the system message"

# Commands.
talk 0 "reset" 'Hello\n/reset\nHello\n/quit\nnever\n' "${options[@]}" --json reset.json
json reset.json 'len(d["turns"]) == 4' "/quit ends the conversation"
json reset.json 'd["turns"][1]["text"] == d["turns"][3]["text"]' "a new conversation gives the same answer"
json reset.json 'd["turns"][3]["prompt_tokens"] == d["turns"][1]["prompt_tokens"]' "and knows nothing of the old one"
talk 0 "an unknown command" '/help\n' "${options[@]}"
says err "accepted: /reset, /quit" "commands"
talk 0 "no line" '' "${options[@]}"
[ -s out ] && fail "an answer to nothing"
talk 0 "no newline at the end" 'Hello' "${options[@]}" --json end.json
json end.json 'len(d["turns"]) == 2' "the last line counts without a newline"

# A context that is full: what does not fit is said, and the rest goes on.
talk 0 "a full context" 'Hello\nA line that is too long for what is left\n/reset\nHello\n' "${options[@]}" --context 40 \
    --json full.json
says err "room for 40" "the context"
says err "/reset" "what to do"
json full.json 'len(d["turns"]) == 4 and d["turns"][1]["text"] == d["turns"][3]["text"]' "the line is left out"
talk 0 "a full context while answering" 'Hello\n' "${options[@]}" --context 26
says err "is full" "an answer that is cut short"

# Refused.
talk 2 "no template" 'Hello\n' "$model" tokenizer=bytes device=cpu
says err "has no chat template" "a folder without a template"
says err "data.template" "how to name one"
talk 2 "a template that does not exist" 'Hello\n' "$model" tokenizer=bytes device=cpu data.template=nothing
talk 2 "too long a context" 'Hello\n' "${options[@]}" --context 100000
talk 3 "too little memory" 'Hello\n' model=gpt2-124m device=cpu data.template=plain memory=540MiB --context 1024
says err "fits" "what would fit"

# A run is talked to as it was trained: with its template and its system message.
printf '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}\n%.0s' 1 2 3 4 5 6 >chat.jsonl
run 0 "a run" train model=tiny --data chat.jsonl data.val=0 seq=64 batch.micro=1 steps=2 eval.every=0 generate.tokens=0 \
    device=cpu data.template=own/chat_template.jinja data.system=Brief run.dir=run
talk 0 "a run" 'Hi\n' run device=cpu --tokens 4 --json run.json
json run.json 'd["turns"][1]["prompt_tokens"] == len("<system>Brief\n<user>Hi\n<assistant>")' "the template of the run"
talk 0 "a run, asked in another way" 'Hi\n' run device=cpu --tokens 4 data.template=plain --system "" --json run.json
json run.json 'd["turns"][1]["prompt_tokens"] == len("User:\nHi\n\nAssistant:\n")' "the template as given"

# A template's end of turn ends an answer: a token where it has one, else its text.
stories=$source_tree/../shared/fixtures/lm/stories260K
[ -n "${HAGGLE_FIXTURES:-}" ] && stories=$HAGGLE_FIXTURES/../lm/stories260K
if [ -d "$stories" ]; then
    cp -r "$stories" tale && chmod -R u+w tale
    cat >tale/chat_template.jinja <<'TEMPLATE'
{% for m in messages %}{% if m.role == "user" %}{{ m.content }}{% else %}{{ m.content }}. The end
{% endif %}{% endfor %}
TEMPLATE
    talk 0 "a tale" 'Once upon a time, there was\n' tale device=cpu --tokens 60 --json tale.json
    json tale.json 'd["turns"][1]["tokens"] == 60 and "little" in d["turns"][1]["text"]' "an answer"
    talk 0 "a stop" 'Once upon a time, there was\n' tale device=cpu --tokens 60 --stop " named" --json stop.json
    json stop.json 'd["turns"][1]["ended"] == "stop" and json.load(open("tale.json"))["turns"][1]["text"].startswith(d["turns"][1]["text"])' \
        "an answer that ends at a stop string"
    sed -i 's/\. The end/ named/' tale/chat_template.jinja
    talk 0 "an end of turn" 'Once upon a time, there was\n' tale device=cpu --tokens 60 --json turn.json
    json turn.json 'd["turns"][1]["text"] == json.load(open("stop.json"))["turns"][1]["text"]' "the template's own end of turn"
    sed -i 's/ named/<\/s>/' tale/chat_template.jinja
    talk 0 "a token" 'Once upon a time, there was\n' tale device=cpu --tokens 300 --json token.json
    json token.json 'd["turns"][1]["ended"] == "end of text"' "a token that ends a turn"
    sed -i 's/{% endfor/{% bad/' tale/chat_template.jinja
    talk 1 "a damaged template" 'Hi\n' tale device=cpu
    says err "cannot be used" "a damaged template"
fi
finish
