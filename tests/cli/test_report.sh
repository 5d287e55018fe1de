#!/usr/bin/env bash
# test_report.sh - runs as a page: one run, several, resumed, killed, with hostile names.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
tiny="seq=16 batch.micro=2 generate.tokens=0"

# page FILE: checks that the page is complete, loads nothing, and closes every element that it
# opens.
page() {
    [ "$(head -c 15 "$1")" = '<!DOCTYPE html>' ] || fail "$1 does not begin as HTML"
    [ "$(tail -n 1 "$1")" = '</html>' ] || fail "$1 does not end as HTML"
    grep -qE '(src|href)=|https?://|@import|url\(' "$1" && fail "$1 refers to something outside"
    command -v python3 >/dev/null || return
    python3 - "$1" <<'PYTHON' || fail "$1: see above"
import html.parser, json, sys
text = open(sys.argv[1], encoding="utf-8").read()
class Page(html.parser.HTMLParser):
    empty = {"meta", "path", "rect"}
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.figures, self.data, self.bad = [], set(), set(), "", []
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag not in self.empty:
            self.open.append((tag, a.get("id")))
        if "id" in a:
            if a["id"] in self.ids: self.bad.append("id twice: " + a["id"])
            self.ids.add(a["id"])
        if tag == "figure": self.figures.add(a["id"])
        if any(k.startswith("on") for k in a): self.bad.append("a handler in " + tag)
    def handle_startendtag(self, tag, attrs):
        if tag not in self.empty: self.bad.append("closed at once: " + tag)
    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag: self.bad.append("ends out of order: " + tag)
        else: self.open.pop()
    def handle_data(self, data):
        if self.open and self.open[-1] == ("script", "data"): self.data += data
p = Page()
p.feed(text)
p.close()
d = json.loads(p.data)
if p.open: p.bad.append("not closed: %s" % p.open)
if not {"loss", "lr", "norm", "times", "histogram", "cdf"} <= p.figures: p.bad.append("figures: %s" % p.figures)
for name, plot in d["plots"].items():
    if name not in p.figures or not plot["lo"] < plot["hi"]: p.bad.append("data of " + name)
    for s in plot["series"]:
        for key in ("v", "lo", "hi"):
            if key in s and len(s[key]) != len(d["x"][s["x"]]): p.bad.append("lengths in %s %s" % (name, s["label"]))
for b in p.bad: print("   ", b)
sys.exit(1 if p.bad else 0)
PYTHON
}

# shellcheck disable=SC2086 # $tiny is several words
{
    # one run; its result is stored beside its log
    run 0 "a run" train $tiny steps=40 eval.every=10 run.dir=a --json a.json
    cmp -s a.json a/result.json || fail "result.json is not what --json gave"
    run 0 "its report" report a --json report.json
    page a/report.html
    for word in "report    a/report.html" "steps              40 (1 to 40 of 40)" "step p99" "need 299" "verdict "; do
        says out "$word" "the report in words"
    done
    [ -s err ] && fail "a whole run has problems: $(cat err)"
    for word in "<figure id=\"split\">" "<figure id=\"memory\">" "warm-up" "command line" "eval.every" "tiny, 779.4K parameters"; do
        says a/report.html "$word" "the page"
    done
    json report.json 'd["verb"] == "report" and d["runs"][0]["has_result"] and d["runs"][0]["end"] == "done"' "report --json"
    json report.json 'd["runs"][0]["log"]["damaged_lines"] == 0 and d["runs"][0]["log"]["validations"] == 4' "the log"
    json report.json 'd["runs"][0]["settings"]["eval.every"] == "10" and "optim.lr" not in d["runs"][0]["settings"]' "settings"
    # figures computed from the log equal those that the run reported
    json report.json '(lambda r, t: abs(r["figures"]["step_ms_p50"] / t["step_ms"]["p50"] - 1) < 1e-9
        and abs(r["figures"]["step_ms_p99"] / t["step_ms"]["p99"] - 1) < 1e-9 and r["step_ms"]["n"] == t["step_ms"]["n"]
        and r["figures"]["tokens_per_s"] == t["tokens_per_s"] and r["figures"]["mfu"] == t["mfu"]
        and r["figures"]["memory_measured_bytes"] == t["memory"]["measured_bytes"]
        and r["figures"]["validation_loss"] == t["run"]["validation_loss"])(d["runs"][0], json.load(open("a.json")))' \
        "the log and the result agree"
    # a run with nothing left to train keeps its result
    run 0 "nothing left" train $tiny steps=40 eval.every=10 run.dir=a
    cmp -s a.json a/result.json || fail "a run of no steps replaced the result"

    # a name made of markup; a run that is resumed, then killed: its old result is about other steps
    evil='b<script>alert("x")<&'
    run 0 "hostile name" train $tiny steps=10 run.dir="$evil"
    "$haggle" train $tiny steps=100000 log.every=1 run.dir="$evil" >out 2>err &
    training=$!
    for _ in $(seq 100); do
        sleep 0.1
        [ "$(grep -c '"loss"' "$evil/log.jsonl")" -gt 30 ] && break
    done
    kill -KILL $training
    wait $training 2>/dev/null
    [ -e "$evil/result.json" ] && fail "the result of an earlier process outlived its meaning"
    run 0 "a killed run" report "$evil" --out evil.html
    says err "There is no result.json" "a killed run"
    says evil.html "There is no result.json" "a killed run"
    says evil.html "class=\"line resume\"" "a resumed run"
    says evil.html "b&lt;script&gt;alert(&quot;x&quot;)&lt;&amp;" "a hostile name"
    grep -q '<script>alert' evil.html && fail "a hostile name became markup"
    page evil.html

    # several runs side by side; runs with the same name can be told apart
    mkdir -p c/a && cp a/log.jsonl a/recipe.yaml c/a
    printf 'torn {"step' >>c/a/log.jsonl
    run 0 "several" report a c/a "$evil" --json several.json
    page report.html
    json several.json 'd["file"] == "report.html" and [r["dir"] for r in d["runs"]][:2] == ["a", "c/a"]' "several"
    json several.json 'd["runs"][1]["log"]["torn"] and not d["runs"][1]["has_result"]' "several, one torn"
    says out "cannot be told apart" "several: the same step times"
    says report.html "c/a" "several: told apart by their paths"

    # refusals
    run 2 "no run" report
    says err "accepted: haggle report RUN_DIR" "no run"
    run 2 "a knob" report a steps=5
    says err "has no meaning here" "a knob"
    run 1 "no such folder" report nowhere
    says err "'nowhere' is not a folder" "no such folder"
    mkdir empty && run 1 "no log" report empty
    says err "has no log.jsonl" "no log"
    run 2 "a folder as the page" report a --out c
    says err "is a folder" "a folder as the page"
    run 1 "a page that cannot be written" report a --out nowhere/x.html
    run 2 "too many" report a a a a a a a a a a a a a a a a a
    says err "accepted: 1 to 16" "too many"
}
finish
