#!/usr/bin/env bash
# test_trials.sh - bench --store, and haggle trials over the rows that it recorded.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export XDG_DATA_HOME=$here/data

run 0 "nothing recorded" trials --json none.json
says err "nothing is recorded yet: 'haggle tune' records its trials in $here/data/haggle/trials.db" "nothing recorded"
json none.json 'd["tunings"] == []' "nothing recorded"
run 0 "nothing recorded" trials all -o json
json out 'd == []' "nothing recorded"
[ -e "$here/data" ] && fail "a list makes a store"
run 1 "no last search" trials last
says err "$here/data/haggle/trials.db" "no last search"
run 1 "no store" trials --store missing.db
says err "'missing.db' does not exist" "no store"
run 0 "record" bench seq=16 device=cpu threads=1 batch.micro=1,2 memory=1MiB,30MiB --steps 3 --repeat 2 --store t.db
run 0 "a list" trials --store t.db
says err "6 trials outside any tuning" "a list" # a refused setting is not tried again
run 0 "trials" trials none --store t.db --json t.json
says out "all with seq=16 device=cpu threads=1" "trials"
says out "refused: the run needs" "trials"
says out "p99 needs 299" "trials"
json t.json 'len(d["trials"]) == 6 and d["verb"] == "trials" and d["store"] == "t.db"' "trials --json"
json t.json 'sorted({t["outcome"] for t in d["trials"]}) == ["measured", "refused"]' "outcomes"
json t.json 'all(t["origin"] == "bench" and t["model"] == "tiny" and t["steps"] in (0, 3) for t in d["trials"])' "rows"
json t.json 'len({t["key"] for t in d["trials"]}) == 1 and len({t["setting"] for t in d["trials"]}) == 2' "keys"
json t.json 'all((t["tokens_per_s"] is None) == (t["outcome"] == "refused") for t in d["trials"])' "no zero for what was not measured"
run 0 "a filter" trials none -s t.db --outcome measured -o csv
[ "$(wc -l <out)" -eq 5 ] || fail "four measured trials are not five lines of CSV"
run 0 "another model" trials none -s t.db --model other -o jsonl
[ ! -s out ] || fail "trials of another model"
run 0 "the default" bench seq=16 device=cpu batch.micro=1 --steps 2 --repeat 1 --store "$XDG_DATA_HOME/haggle/trials.db" -q
run 0 "the default" trials all -o json -q
json out 'len(d) == 1' "the default"

run 2 "a number that is none" trials 1 2 -s t.db
run 2 "no such tuning" trials 77 -s t.db
says err "has no tuning 77" "no such tuning"
run 2 "no such outcome" trials --outcome nice -s t.db
run 2 "a knob" trials seq=3 -s t.db
run 2 "no such format" trials -o xml -s t.db
says err "accepted: md" "no such format"
run 1 "a store that cannot be made" bench seq=16 --steps 2 --repeat 1 --store /proc/none/t.db

# A file that is not a store stays unchanged, and nothing is measured for it.
printf 'a letter to a friend, long enough to be taken for a database if nobody looked inside it at all\n' >letter
cp letter copy
run 1 "not a store" trials -s letter
says err "'letter' is not a store of trials" "not a store"
run 1 "not a store" bench seq=16 --steps 2 --repeat 1 --store letter
cmp -s letter copy || fail "a file that is no store was written to"
head -c 20000 t.db >cut.db
run 1 "a damaged store" trials none -s cut.db
says err "'cut.db' is damaged" "a damaged store"

# kill -9 while it records: what was reported can be read.
"$haggle" bench seq=16 device=cpu threads=1 batch.micro=1 --steps 3 --repeat 500 --store k.db >/dev/null 2>log &
pid=$!
for _ in $(seq 400); do
    [ "$(grep -c tokens/s log)" -ge 3 ] && break
    sleep 0.02
done
kill -KILL $pid
wait $pid 2>/dev/null
reported=$(grep -c tokens/s log)
run 0 "after kill -9" trials none -s k.db -o csv
[ "$(wc -l <out)" -gt "$reported" ] || fail "after kill -9: $(wc -l <out) lines for $reported reported trials"
run 0 "after kill -9, another" bench seq=16 device=cpu batch.micro=1 --steps 2 --repeat 1 --store k.db
finish
