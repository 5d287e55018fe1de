#!/usr/bin/env bash
# test_help.sh - help of the program and of every verb, suggestions for misspelt names, a fast
# start.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

run 0 "--help" --help
says out "haggle VERB" "--help"
cp out all
run 0 "help" help
cmp -s out all || fail "'haggle help' and 'haggle --help' differ"
run 0 "--version" --version
says out "haggle " "--version"

for verb in train tune bench data report trials plan show verify generate chat export tokenize knobs doctor help version docs; do
    [ $verb = docs ] || says all "  $verb" "the list of verbs"
    run 0 "$verb --help" $verb --help
    says out "haggle $verb" "$verb --help"
    says out "Examples" "$verb --help"
    says out "--json" "$verb --help"
    cp out one
    run 0 "help $verb" help $verb
    cmp -s out one || fail "'haggle help $verb' and 'haggle $verb --help' differ"
done
grep -qw docs all && fail "docs is not for people and should be hidden"

run 2 "no verb"
says err "haggle VERB" "no verb"
run 2 "a slip in a verb" trian
says err "did you mean train?" "a slip in a verb"
run 2 "no verb like it" xyzzy
says err "accepted: train" "no verb like it"
run 2 "help of an unknown verb" help benhc
says err "did you mean bench?" "help of an unknown verb"

# The program does nothing heavy at its start. The best of twenty starts is its cost.
best=999999999
for _ in $(seq 20); do
    begin=$(date +%s%N)
    "$haggle" --help >/dev/null
    took=$(($(date +%s%N) - begin))
    [ $took -lt $best ] && best=$took
done
[ $best -lt 20000000 ] || fail "haggle --help takes $((best / 1000000)) ms; at most 20"
finish
