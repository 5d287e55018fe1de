#!/usr/bin/env bash
# test_tune_report.sh - the page of a search from the program: written beside the recipe, and made
# again from the store, also if nothing can be chosen or the model's name is hostile. Then in a real
# browser, if there is one: nothing on the console, nothing loaded, no page wider than a phone,
# light and dark, the setting under the cursor and by keys.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
small=(seq=16 batch.micro=2 batch.accum=2 generate.tokens=0)

run 0 "a search" tune model=tiny --busy count "${small[@]}" --time 3s --p99 10s --store s.db --save best.yaml
says out "report    best.html" "a search"
# A trade needs two settings.
says out "the trade" "a search"
[ -s best.html ] || fail "no page beside the recipe"
run 0 "again" report --tuning last --store s.db --out again.html
says out "report    again.html" "again"
says again.html "made from the store" "again"
run 0 "by number" report --tuning 1 --store s.db --json by.json
[ -s tuning-1.html ] || fail "no tuning-1.html"
json by.json 'd["tuning"] == 1 and d["trials"] > 0' "by number"
grep -q 'was chosen' best.html again.html && fail "a choice is not seen"

run 2 "no such tuning" report --tuning 7 --store s.db
says err "has no tuning 7" "no such tuning"
run 2 "no number" report --tuning x --store s.db
run 2 "both" report --tuning 1 somewhere
run 2 "a store alone" report --store s.db
run 0 "none" tune model=tiny --busy count "${small[@]}" --time 1s --store none --save none.yaml --report none
[ -e none.html ] && fail "a page that nobody wanted"

# A model whose name is markup, and not enough memory for it: the name is in the title, in reasons
# and in the recipe.
bad='a"><img src=x onerror=alert(1)>'
run 0 "a run" train model=tiny "${small[@]}" steps=1 run.dir=r
run 0 "a folder" export r plain
mv plain "$bad"
run 3 "nothing fits" tune "model=$bad" "${small[@]}" memory=3MiB --time 1s --store s.db --report bad.html
says bad.html "Nothing was chosen" "nothing fits"
says bad.html "&lt;img src=x" "nothing fits"
grep -q '<img' bad.html && fail "a name became markup"
run 0 "nothing, again" report --tuning last --store s.db --out bad-again.html
says bad-again.html "Nothing was chosen" "nothing, again"

[ $failures -eq 0 ] || finish
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "passed; no Chromium here to look at the page with"
    exit 0
}
look() { # look FILE [FLAG ...]: the page's elements after its script, in ./dom; the console in ./console
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$here/profile" \
        --enable-logging=stderr --virtual-time-budget=5000 "${@:2}" --dump-dom "file://$here/$1" >dom 2>console
}

# What a person would do and see. It is reported to the page around it, or put at the end.
cat >probe.js <<'JS'
<script>
(function () {
  var tip = document.getElementById("tip"), seen = [];
  function plot(id) {
    var area = document.querySelector('[data-plot="' + id + '"]');
    if (!area) return "not there";
    var box = area.getBoundingClientRect(), mark = area.querySelector(".mark.chosen, .mark.point"), at = mark.getBoundingClientRect();
    area.dispatchEvent(new PointerEvent("pointermove", { clientX: at.left + at.width / 2, clientY: at.top + at.height / 2 }));
    var hover = tip.textContent;
    area.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    var hidden = tip.style.display;
    area.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    return (box.width > 150 && box.height > 80 ? "room" : "no room") + ", hides " + hidden + ", says " + hover + ", keys " + tip.textContent;
  }
  ["frontier", "memory-plot", "cdf", "predicted"].forEach(function (id) { seen.push(id + ": " + plot(id)); });
  var head = document.querySelectorAll("table.trials thead button")[2], cells = [];
  if (head) {
    head.click();
    head.closest("table").querySelectorAll("tbody tr").forEach(function (row) { cells.push(+row.children[2].dataset.v); });
  }
  seen.push("sorted: " + cells.every(function (v, i) { return i === 0 || cells[i - 1] <= v; }));
  seen.push("loads " + performance.getEntriesByType("resource").length);
  seen.push("paper " + getComputedStyle(document.body).backgroundColor);
  seen.push("wide by " + Math.max(document.documentElement.scrollWidth - document.documentElement.clientWidth, 0));
  seen.push("ready " + document.documentElement.dataset.ready);
  var text = location.pathname.replace(/.*\//, "") + "\n" + seen.join("\n") + "\n";
  if (parent !== window) parent.postMessage(text, "*");
  var out = document.createElement("pre");
  out.textContent = "\n" + text;
  document.body.appendChild(out);
})();
</script>
JS
for page in best again bad bad-again; do
    sed -e '/^<\/body>$/{r probe.js' -e 'd}' $page.html >p-$page.html
done
cat >phone.html <<'HTML'
<!DOCTYPE html><body><pre id="heard"></pre><script>
addEventListener("message", function (e) { document.getElementById("heard").textContent += "\n" + e.data; });
["best", "again", "bad", "bad-again"].forEach(function (name) {
  var f = document.createElement("iframe");
  f.src = "p-" + name + ".html"; f.style.cssText = "width:360px;height:640px"; document.body.appendChild(f);
});
</script>
HTML
if ! look phone.html || ! grep -q 'id="heard"' dom; then
    echo "passed; $browser does not run here"
    exit 0
fi
grep -E 'CONSOLE' console && fail "the console has messages"
[ "$(grep -c '^wide by 0$' dom)" -eq 4 ] || fail "at 360 pixels: $(grep '^wide by' dom | tr '\n' ' ')"
[ "$(grep -c '^ready yes$' dom)" -eq 4 ] || fail "a script did not come to its end"
[ "$(grep -c '^loads 0$' dom)" -eq 4 ] || fail "a page loads something: $(grep '^loads' dom)"
[ "$(grep -c '^sorted: true$' dom)" -eq 4 ] || fail "a column's head does not sort"
[ "$(grep -c '^frontier: room, hides none, says [a-z].*tokens/s.*p99.*needs.*, keys [a-z]' dom)" -eq 2 ] ||
    fail "the frontier at 360 pixels: $(grep '^frontier:' dom)"
for plot in memory-plot cdf predicted; do
    [ "$(grep -c "^$plot: room, hides none, says [a-z].*, keys [a-z]" dom)" -eq 2 ] || fail "at 360 pixels: $(grep "^$plot:" dom)"
done
look p-best.html --blink-settings=preferredColorScheme=0 --window-size=1100,900
grep -E 'CONSOLE' console && fail "dark: the console has messages"
grep -q '^paper rgb(20, 23, 26)$' dom || fail "dark: $(grep '^paper' dom)"
grep -q '^wide by 0$' dom || fail "dark and wide: $(grep '^wide by' dom)"
look p-best.html --blink-settings=preferredColorScheme=1 --window-size=1100,900
grep -q '^paper rgb(255, 255, 255)$' dom || fail "light: $(grep '^paper' dom)"
grep -q '^wide by 0$' dom || fail "light: $(grep '^wide by' dom)"
finish
