// html_page.c - the style sheet and the script of a report; see html.h.
//
// Style: colours are variables, set once each for light, dark and paper. The eight colours of
// curves and bars were found by a search around those of Okabe and Ito. Any two stay apart in
// simulated protanopia, deuteranopia and tritanopia too (CIE76 distance at least 16 in light, 14 in
// dark; 21 among the first four), and each stands out from the background (contrast 3). Colour is
// never the only sign: bars have tables, the cursor shows run names, and runs from the ninth on are
// dashed. Plots stretch, their labels do not (svg.h).
//
// Script: it shows the values under the cursor, by pointer or arrow keys, and does nothing else. It
// writes text, never markup.
#include "report/html.h"

// clang-format off
const char *const html_style[] = {
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--rule:#d5dae0;"
        "--soft:#f3f5f7;\n",
    "--c0:#0072b2;--c1:#d55e00;--c2:#054740;--c3:#ce77a0;--c4:#826a22;--c5:#3b125a;--c6:#76886b;"
        "--c7:#771208;\n",
    "--warm:#00000014;--bad:#b3261e}\n",
    "@media (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e9ec;--dim:#9aa5b0;"
        "--rule:#363d45;--soft:#1d2226;\n",
    "--c0:#56b4e9;--c1:#f08a4b;--c2:#34926c;--c3:#ecb4c2;--c4:#ede06a;--c5:#885fff;--c6:#d3d2f8;"
        "--c7:#ab5119;\n",
    "--warm:#ffffff18;--bad:#ff8a80}}\n",
    "@media print{:root{color-scheme:light;--bg:#fff;--fg:#000;--dim:#444;--rule:#bbb;--soft:#fff;"
        "\n",
    "--c0:#0072b2;--c1:#d55e00;--c2:#054740;--c3:#ce77a0;--c4:#826a22;--c5:#3b125a;--c6:#76886b;"
        "--c7:#771208;--warm:#00000014;--bad:#b3261e}\n",
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}\n",
    "figure,tr,.run{break-inside:avoid}h2{break-after:avoid}"
        "main{max-width:none!important;padding:0!important}\n",
    ".scroll{overflow:visible!important}}\n",
    "*{box-sizing:border-box}\n",
    "body{margin:0;background:var(--bg);color:var(--fg);"
        "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",Roboto,sans-serif}\n",
    "main{max-width:1080px;margin:0 auto;padding:1rem 1rem 3rem}\n",
    "h1{font-size:1.35rem;margin:.2em 0 .6em}h2{font-size:1.1rem;margin:0 0 .4em;"
        "overflow-wrap:anywhere}\n",
    "h1 small{font-weight:400;color:var(--dim);font-size:.9rem}\n",
    "section>h2:first-child{margin-top:0}.part{margin-top:2rem}\n",
    "small,.small{font-size:.82rem;color:var(--dim)}p.small{margin:.3em 0}\n",
    ".heads{display:grid;gap:1rem;"
        "grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}\n",
    ".run{border:1px solid var(--rule);border-radius:8px;padding:.8rem 1rem;min-width:0}\n",
    ".verdict{margin:.2em 0 .8em;padding:.5em .8em;background:var(--soft);"
        "border-left:3px solid var(--c0)}\n",
    ".problem{margin:.4em 0;padding-left:.8em;border-left:3px solid var(--bad);font-size:.88rem;"
        "overflow-wrap:anywhere}\n",
    "dl{display:grid;grid-template-columns:auto 1fr;gap:.1em 1em;margin:0;font-size:.9rem}\n",
    "dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere;min-width:0}\n",
    ".scroll{overflow-x:auto}\n",
    "table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\n",
    ".figures{min-width:min(100%,30rem)}\n",
    "th,td{text-align:left;padding:.28em 1.1em .28em 0;vertical-align:baseline;"
        "border-bottom:1px solid var(--rule);overflow-wrap:anywhere}\n",
    "thead th{font-weight:600;border-bottom:2px solid var(--rule)}"
        "tbody th{font-weight:400;color:var(--dim);white-space:nowrap}\n",
    "td small{display:block;line-height:1.25}.settings td small,.one td small{display:inline;"
        "margin-left:.5em}\n",
    ".unknown{color:var(--dim)}.ratio{color:var(--dim);font-size:.82rem}\n",
    "figure{margin:1rem 0 0;min-width:0}figcaption{font-weight:600}"
        "figcaption small{font-weight:400}\n",
    ".pair{display:grid;gap:0 2rem;"
        "grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}\n",
    ".key{margin:.1em 0 .3em;font-size:.82rem;color:var(--dim);display:flex;flex-wrap:wrap;"
        "gap:0 1.1em}\n",
    ".key i{display:inline-block;width:1.1em;height:3px;margin-right:.4em;vertical-align:middle;"
        "background:var(--k)}\n",
    ".key i.thin{opacity:.4}.key i.eval{"
        "background:repeating-linear-gradient(90deg,var(--k) 0 4px,transparent 4px 7px)}\n",
    ".key i.resume{width:0;height:.9em;border-left:2px dashed var(--dim)}"
        ".key i.skip{width:3px;height:.7em;background:var(--bad)}\n",
    ".key i.warm{height:.8em;background:var(--warm);outline:1px solid var(--rule)}"
        ".key i.none{display:none}\n",
    "h2 i,th i,.tip i{display:inline-block;width:.7em;height:.7em;border-radius:2px;"
        "margin-right:.4em;background:var(--k)}\n",
    ".frame{display:grid;margin-top:.6em;grid-template-columns:3.4em 1fr .8em;"
        "grid-template-rows:15em 1.3em auto}.frame.low{grid-template-rows:9em 1.3em auto}\n",
    ".y{position:relative;grid-column:1}.y span{position:absolute;right:.5em;"
        "transform:translateY(-50%);white-space:nowrap;font-size:.78rem;color:var(--dim)}\n",
    ".area{position:relative;grid-column:2;border-left:1px solid var(--dim);"
        "border-bottom:1px solid var(--dim);cursor:crosshair;touch-action:pan-y}\n",
    ".area:focus-visible{outline:2px solid var(--c0);outline-offset:2px}\n",
    ".area svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}\n",
    ".x{position:relative;grid-column:2;grid-row:2}"
        ".x span{position:absolute;top:.2em;transform:translateX(-50%);white-space:nowrap;"
        "font-size:.78rem;color:var(--dim)}\n",
    ".axis{grid-column:2;grid-row:3;text-align:center;font-size:.78rem;color:var(--dim);"
        "margin-top:-.1em}\n",
    ".grid{stroke:var(--rule);fill:none;vector-effect:non-scaling-stroke;stroke-width:1px}\n",
    ".line,.dots{fill:none;stroke:var(--k);stroke-width:1.5px;vector-effect:non-scaling-stroke;"
        "stroke-linejoin:round;stroke-linecap:round}\n",
    ".strong{stroke-width:2.2px}.faint{opacity:.4;stroke-width:1px}.dash{stroke-dasharray:6 4}"
        ".line.eval{stroke-dasharray:2 4}\n",
    ".dots{stroke-width:6px}.band{fill:var(--k);opacity:.25;stroke:var(--k);stroke-width:.5px;"
        "vector-effect:non-scaling-stroke}\n",
    ".bin{fill:var(--k);opacity:.75;stroke:var(--bg);stroke-width:1px;"
        "vector-effect:non-scaling-stroke}\n",
    ".warm{fill:var(--warm)}.line.resume{stroke:var(--dim);stroke-dasharray:4 3;stroke-width:1px}"
        ".line.skip{stroke:var(--bad);stroke-width:2px}\n",
    ".line.quantile{stroke:var(--fg);stroke-width:1px;stroke-dasharray:3 3}\n",
    ".note{position:absolute;font-size:.76rem;padding:0 .35em;white-space:nowrap;"
        "pointer-events:none;background:color-mix(in srgb,var(--bg) 75%,transparent)}\n",
    ".note.before{transform:translateX(-100%)}\n",
    ".row{display:grid;grid-template-columns:minmax(0,14rem) 1fr;gap:.1em 1em;align-items:center;"
        "margin:.3em 0;font-size:.88rem}\n",
    ".what{overflow-wrap:anywhere}.what:empty{display:none}.what:empty+.bar{grid-column:1/3}\n",
    ".bar{display:flex;height:1.5em;background:var(--soft);border-radius:3px;overflow:hidden}"
        ".bar i{height:100%;flex:none;box-shadow:inset -1px 0 0 var(--bg);background:var(--k)}\n",
    ".measured{--k:var(--dim)}.parts{margin-top:.4em}\n",
    ".cursor{position:absolute;top:0;bottom:0;width:0;border-left:1px solid var(--fg);opacity:.6;"
        "pointer-events:none;display:none}\n",
    ".tip{position:fixed;z-index:2;pointer-events:none;display:none;background:var(--bg);"
        "color:var(--fg);border:1px solid var(--rule);border-radius:6px;\n",
    "padding:.4em .6em;font-size:.8rem;line-height:1.4;box-shadow:0 2px 10px #0004;"
        "max-width:min(22rem,92vw);font-variant-numeric:tabular-nums}\n",
    ".tip b{display:block}.tip div{overflow-wrap:anywhere}\n",
    ".fg{--k:var(--fg)}\n",
    ".c0,.f0{--k:var(--c0)}.c1,.f1{--k:var(--c1)}.c2,.f2{--k:var(--c2)}.c3,.f3{--k:var(--c3)}"
        ".c4,.f4{--k:var(--c4)}.c5,.f5{--k:var(--c5)}.c6,.f6{--k:var(--c6)}.c7,.f7{--k:var(--c7)}"
        "\n",
    "footer{margin-top:2rem;font-size:.82rem;color:var(--dim)}\n",
    "@media (max-width:560px){.one td small{display:block;margin:0}main{padding:.7rem .7rem 2rem}"
        ".row{grid-template-columns:1fr}.what:empty+.bar{grid-column:1}"
        ".frame{grid-template-rows:12em 1.3em auto}\n",
    "th,td{padding-right:.7em}tbody th{white-space:normal;overflow-wrap:normal;min-width:5.6em}"
        ".figures td{min-width:7.5em}.x.many span:nth-child(even){visibility:hidden}}\n",
    NULL,
};

const char *const html_script[] = {
    "(function () {\n",
    "  \"use strict\";\n",
    "  var data = JSON.parse(document.getElementById(\"data\").textContent);\n",
    "  var tip = document.getElementById(\"tip\");\n",
    "  // The index of the x nearest to a value; xs ascend.\n",
    "  function nearest(xs, x) {\n",
    "    var lo = 0, hi = xs.length - 1;\n",
    "    while (lo < hi) {\n",
    "      var mid = (lo + hi) >> 1;\n",
    "      if (xs[mid] < x) lo = mid + 1; else hi = mid;\n",
    "    }\n",
    "    return lo > 0 && x - xs[lo - 1] < xs[lo] - x ? lo - 1 : lo;\n",
    "  }\n",
    "  function number(v) {\n",
    "    var a = Math.abs(v);\n",
    "    return a !== 0 && (a < 1e-3 || a >= 1e7) ? v.toExponential(3) : "
        "String(+v.toPrecision(5));\n",
    "  }\n",
    "  function add(parent, tag, text, css) {\n",
    "    var e = document.createElement(tag);\n",
    "    if (text) e.textContent = text;\n",
    "    if (css) e.className = css;\n",
    "    parent.appendChild(e);\n",
    "    return e;\n",
    "  }\n",
    "  function row(s, i, unit) {\n",
    "    var v = s.v[i], text = (s.name ? s.name + \", \" : \"\") + s.label + \" \";\n",
    "    if (v === null || v === undefined) return;\n",
    "    text += number(v) + (unit ? \" \" + unit : \"\");\n",
    "    if (s.lo && s.lo[i] !== null && s.lo[i] !== s.hi[i]) text += \" (\" + number(s.lo[i]) + "
        "\" to \" + number(s.hi[i]) + \")\";\n",
    "    if (s.label === \"validation\") text += \" at step \" + data.x[s.x][i];\n",
    "    var line = add(tip, \"div\");\n",
    "    add(line, \"i\", \"\", s.css);\n",
    "    line.appendChild(document.createTextNode(text));\n",
    "  }\n",
    "  // False: the run has no step near x. A validation always counts, as it names its step.\n",
    "  function covers(plot, s, x) {\n",
    "    var xs = data.x[s.x], width = data.width[s.x] || 0;\n",
    "    if (!plot.steps || s.label === \"validation\") return true;\n",
    "    return x >= xs[0] - width && x <= xs[xs.length - 1] + 2 * width;\n",
    "  }\n",
    "  function head(plot, s, i) {\n",
    "    var x = data.x[s.x][i], width = data.width[s.x] || 0;\n",
    "    if (plot.steps) return width > 1 ? \"steps \" + x + \" to \" + (x + width - 1) : \"step "
        "\" + x;\n",
    "    return width ? number(x) + \" to \" + number(x + width) + \" ms\" : number(x) + \" "
        "ms\";\n",
    "  }\n",
    "  Object.keys(data.plots).forEach(function (id) {\n",
    "    var plot = data.plots[id], area = document.querySelector('[data-plot=\"' + id + '\"]');\n",
    "    if (!area) return;\n",
    "    plot.steps = id !== \"histogram\" && id !== \"cdf\";\n",
    "    plot.series = plot.series.filter(function (s) { return s.v.length > 0; });\n",
    "    if (!plot.series.length) return;\n",
    "    var cursor = add(area, \"div\", \"\", \"cursor\"), at = 0;\n",
    "    function hide() { tip.style.display = cursor.style.display = \"none\"; }\n",
    "    function show(x, left, top) {\n",
    "      var here = plot.series.filter(function (s) { return covers(plot, s, x); });\n",
    "      if (!here.length) { hide(); return; }\n",
    "      var first = here[0], i = nearest(data.x[first.x], x);\n",
    "      at = nearest(data.x[plot.series[0].x], x);\n",
    "      tip.textContent = \"\";\n",
    "      add(tip, \"b\", head(plot, first, i));\n",
    "      here.forEach(function (s) { row(s, nearest(data.x[s.x], x), plot.unit); });\n",
    "      var place = (data.x[first.x][i] - plot.lo) / (plot.hi - plot.lo);\n",
    "      cursor.style.left = 100 * Math.min(Math.max(place, 0), 1) + \"%\";\n",
    "      tip.style.display = cursor.style.display = \"block\";\n",
    "      var w = tip.offsetWidth, h = tip.offsetHeight;\n",
    "      var l = left + 14 + w > innerWidth ? left - 14 - w : left + 14;\n",
    "      tip.style.left = Math.min(Math.max(l, 4), Math.max(innerWidth - w - 4, 4)) + \"px\";\n",
    "      tip.style.top = Math.min(Math.max(top - h / 2, 4), Math.max(innerHeight - h - 4, 4)) + "
        "\"px\";\n",
    "    }\n",
    "    function move(e) {\n",
    "      var box = area.getBoundingClientRect();\n",
    "      show(plot.lo + (plot.hi - plot.lo) * (e.clientX - box.left) / box.width, e.clientX, "
        "e.clientY);\n",
    "    }\n",
    "    area.addEventListener(\"pointermove\", move);\n",
    "    area.addEventListener(\"pointerdown\", move);\n",
    "    area.addEventListener(\"pointerleave\", hide);\n",
    "    area.addEventListener(\"blur\", hide);\n",
    "    area.addEventListener(\"keydown\", function (e) {\n",
    "      var xs = data.x[plot.series[0].x];\n",
    "      var to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 "
        "}[e.key];\n",
    "      if (e.key === \"Escape\") hide();\n",
    "      if (to === undefined) return;\n",
    "      e.preventDefault();\n",
    "      to = Math.min(Math.max(to, 0), xs.length - 1);\n",
    "      var box = area.getBoundingClientRect();\n",
    "      show(xs[to], box.left + box.width * (xs[to] - plot.lo) / (plot.hi - plot.lo), box.top + "
        "box.height / 2);\n",
    "    });\n",
    "  });\n",
    "  document.documentElement.dataset.ready = \"yes\";\n",
    "})();\n",
    NULL,
};
// clang-format on
