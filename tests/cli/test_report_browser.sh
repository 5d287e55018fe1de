#!/usr/bin/env bash
# test_report_browser.sh - the page in a real browser, if there is one: no error on the console,
# every plot drawn with a visible size, no page wider than a phone, values under the cursor.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "skipped: no Chromium here to look at the page with"
    exit 77
}
# A browser that cannot start here (no user namespaces, no shared memory) proves nothing about the
# page.
look() { # look FILE: the page's elements after its script, in ./dom; the console in ./console
    timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$here/profile" \
        --enable-logging=stderr --virtual-time-budget=5000 --dump-dom "file://$here/$1" >dom 2>console
}
echo '<!DOCTYPE html><p id="alive">' >alive.html
if ! look alive.html || ! grep -q alive dom; then
    echo "skipped: $browser does not run here"
    exit 77
fi

for name in one two; do
    run 0 "a run" train seq=16 batch.micro=2 generate.tokens=0 steps=40 eval.every=10 run.dir=$name
done
run 0 "one" report one --out plain.html
run 0 "two" report one two --out pair.html

# What a person would do and see, as a script at the end of a copy of the page.
cat >probe.js <<'JS'
<script>
(function () {
  var seen = [];
  document.querySelectorAll(".area").forEach(function (area) {
    var box = area.getBoundingClientRect(), drawn = area.querySelectorAll("path.line, path.band, rect.bin");
    var extent = Array.from(drawn).some(function (e) { var b = e.getBBox(); return b.width > 100 || b.height > 100; });
    area.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 5 }));
    seen.push(area.dataset.plot + ": " + (extent ? "drawn" : "empty") + ", " + (box.width > 150 && box.height > 80 ? "room" : "no room") +
      ", says " + document.getElementById("tip").textContent);
  });
  var out = document.createElement("pre");
  out.id = "probe";
  out.textContent = "\n" + seen.join("\n") + "\nwide by " + Math.max(document.documentElement.scrollWidth - innerWidth, 0) + "\n";
  document.body.appendChild(out);
})();
</script>
JS
check() { # check FILE
    sed -e '/^<\/body>$/{r probe.js' -e 'd}' "$1" >probed.html
    look probed.html || fail "$1: the browser failed"
    grep -E 'CONSOLE' console && fail "$1: the console has messages"
    grep -q '<html lang="en" data-ready="yes">' dom || fail "$1: its script did not come to its end"
    for plot in loss lr norm times histogram cdf; do
        grep -q "^$plot: drawn, room, says [a-z0-9]" dom || fail "$1: $plot: $(grep "^$plot:" dom || echo "not there")"
    done
    grep -q '^wide by 0$' dom || fail "$1: $(grep '^wide by' dom): it scrolls sideways"
}
check plain.html
grep -q '^loss: .*says step 20.*loss [2-9]' dom || fail "the loss under the cursor: $(grep '^loss:' dom)"
grep -q '^times: .* ms' dom || fail "times have no unit"
check pair.html
grep -q '^loss: .*one, .*two, ' dom || fail "under the cursor runs are not named: $(grep '^loss:' dom)"

# The page at the width of a phone. It is in a frame, because a window cannot be that narrow. The
# frame reports to the page around it.
sed -e '/^<\/body>$/{r probe.js' -e 'd}' pair.html |
    sed 's|document.body.appendChild(out);|&parent.postMessage(out.textContent, "*");|' >inner.html
cat >phone.html <<'HTML'
<!DOCTYPE html><body><iframe src="inner.html" style="width:320px;height:640px"></iframe><pre id="heard"></pre>
<script>addEventListener("message", function (e) { document.getElementById("heard").textContent = e.data; });</script>
HTML
look phone.html
grep -q '^wide by 0$' dom || fail "at 320 pixels: $(grep '^wide by' dom || echo "no answer")"
for plot in loss histogram times; do
    grep -q "^$plot: drawn, room" dom || fail "at 320 pixels: $(grep "^$plot:" dom)"
done
finish
