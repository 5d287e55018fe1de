#!/usr/bin/env bash
# page_png.sh - makes a picture of a page of `haggle tune`, with the cursor on the choice. Needs
# Chromium.
#
#   page_png.sh PAGE.html OUT.png [WIDTH [HEIGHT]]    page_png.sh runs/demo-tuned.html docs/tune.png
set -eu
page=$(realpath "${1:?usage: $0 PAGE.html OUT.png [WIDTH [HEIGHT]]}") out=$(realpath -m "${2:?usage: $0 PAGE.html OUT.png}")
width=${3:-1060} height=${4:-1030}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "page_png.sh: Chromium was not found; install chromium" >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/hover" <<'HTML'
<script>addEventListener("load", function () {
  var area = document.querySelector('[data-plot="frontier"]'), mark = area && area.querySelector(".mark.chosen");
  if (!mark) return;
  var box = mark.getBoundingClientRect();
  area.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 }));
});</script>
HTML
sed -e "/^<\/body>\$/{r $work/hover" -e 'd}' "$page" >"$work/page.html"
"$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --user-data-dir="$work/profile" \
    --blink-settings=preferredColorScheme=1 --virtual-time-budget=3000 --window-size="$width,$height" \
    --screenshot="$out" "file://$work/page.html" >/dev/null 2>&1
[ -s "$out" ]
