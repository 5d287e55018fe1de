// tune_page_style.c - what the page of a search adds to the style of html_page.c, and its script.
//
// Style: marks are page elements placed at percentages, so they keep their size when plots stretch.
//
// Script: it shows the mark nearest to the pointer, or the next one by arrow keys. It sorts tables.
// It writes text, never markup. Without the script the browser shows a mark's title.
#include "report/tune_page.h"

// clang-format off
const char *const tune_style[] = {
    "p.choice{font-size:1.12rem;line-height:1.45;margin:.4em 0 1em;padding:.7em 1em;"
        "background:var(--soft);border-left:4px solid var(--c1);border-radius:0 8px 8px 0}\n",
    "p.choice.none{border-color:var(--bad)}p.choice code span{white-space:nowrap}\n",
    "code{font:.92em/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
        "overflow-wrap:anywhere}\n",
    ".flag{font-size:.82rem;border:1px solid var(--dim);border-radius:1em;padding:.05em .7em;"
        "color:var(--dim);display:inline-block}\n",
    ".tiles{display:grid;gap:.7rem;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));"
        "margin:0 0 1rem}\n",
    ".tile{border:1px solid var(--rule);border-radius:8px;padding:.6rem .9rem;min-width:0}"
        ".tile small{display:block;line-height:1.35}\n",
    ".tile b{display:block;font-size:1.5rem;line-height:1.3;font-variant-numeric:tabular-nums;"
        "overflow-wrap:anywhere}\n",
    "#predicted{max-width:34rem}#predicted .frame{grid-template-rows:22em 1.3em auto}\n",
    "dl.about{margin:.6em 0}ul.verdict{margin-top:1rem;padding-left:1.9em}"
        "ul.verdict li{margin:.15em 0;overflow-wrap:anywhere}\n",
    ".against td:nth-of-type(3){min-width:6.5em}\n",
    ".against td,.against th{padding-right:1.6em}.against td small,.against th small{display:block;"
        "margin:0;font-weight:400}"
        ".changes{margin:1rem 0}.changes thead th{white-space:nowrap}"
        ".changes td:nth-of-type(2){min-width:5.7rem}.changes td:last-child{min-width:10em}\n",
    ".mark{position:absolute;width:18px;height:18px;margin:-9px 0 0 -9px;line-height:0}"
        ".mark svg.m{position:static;inset:auto;width:18px;height:18px}\n",
    "svg.m{width:14px;height:14px;overflow:visible;stroke-width:1.8;fill:none;stroke:var(--dim);"
        "vertical-align:middle}\n",
    "svg.m.chosen{fill:var(--c1);stroke:var(--bg);stroke-width:1}"
        ".mark.chosen svg.m{width:26px;height:26px;margin:-4px 0 0 -4px}\n",
    "svg.m.given{fill:var(--c0);stroke:var(--bg);stroke-width:1}"
        "svg.m.frontier{fill:var(--c2);stroke:var(--bg);stroke-width:1}\n",
    "svg.m.over{stroke:var(--bad);stroke-width:2.2}svg.m.refused{stroke:var(--bad)}\n",
    ".mark.glance{opacity:.5;z-index:0}.mark.glance svg.m{width:12px;height:12px;margin:3px}"
        ".key .glance svg.m{width:10px;height:10px;opacity:.5}tr.glance td,tr.glance th[scope=row]{"
        "color:var(--dim)}tr.glance svg.m{opacity:.5}\n",
    ".line.interval{stroke:var(--fg);stroke-width:1px;opacity:.55}.line.interval.glance{"
        "stroke:var(--dim);opacity:.3}p.better{margin:.3em 0;font-size:.94rem}\n",
    ".mark.point{width:9px;height:9px;margin:-4.5px 0 0 -4.5px;border-radius:50%;"
        "background:var(--k);outline:1.5px solid var(--bg)}\n",
    ".mark.on{z-index:1}.mark.on::after{content:\"\";position:absolute;inset:-4px;"
        "border:2px solid var(--fg);border-radius:50%}\n",
    ".marks svg.m{margin-right:.35em}.key svg.sample{width:24px;height:8px;margin-right:.4em;"
        "vertical-align:middle}\n",
    ".line.limit{stroke:var(--bad);stroke-dasharray:7 4;stroke-width:1.5px}"
        ".line.diagonal{stroke:var(--dim);stroke-dasharray:3 3;stroke-width:1px}\n",
    ".hatched{--k:repeating-linear-gradient(45deg,var(--c0) 0 4px,var(--bg) 4px 7px)}\n",
    ".line.dots2{stroke-dasharray:1 4}.line.dash2{stroke-dasharray:10 3 2 3}\n",
    ".bar{position:relative}.bar u{position:absolute;top:0;bottom:0;width:0;"
        "border-left:2px dashed var(--bad)}.parts td small{display:inline;margin-left:.4em}\n",
    ".steps{padding:0;margin:0;list-style:none;counter-reset:s}"
        ".steps li{counter-increment:s;position:relative;padding:0 0 .8em 2.6em;"
        "border-left:2px solid var(--rule);margin-left:.9em}\n",
    ".steps li:last-child{border-color:transparent}"
        ".steps li::before{content:counter(s);position:absolute;left:-.95em;top:-.05em;"
        "width:1.75em;height:1.75em;border-radius:50%;\n",
    "background:var(--soft);border:1px solid var(--rule);text-align:center;font-size:.85rem;"
        "line-height:1.7em;color:var(--fg)}.steps div{font-size:.92rem;overflow-wrap:anywhere}\n",
    "details{margin:.8em 0}summary{cursor:pointer;font-weight:600}"
        "summary small{font-weight:400;margin-left:.3em}\n",
    "details pre{background:var(--soft);padding:.8em 1em;border-radius:8px;overflow:auto;"
        "font:.82rem/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;max-height:30em}\n",
    ".trials th[scope=row]{color:var(--fg);white-space:normal;min-width:14em}"
        ".trials .why{min-width:16em;font-size:.84rem;color:var(--dim)}"
        ".trials td{white-space:nowrap}.trials td.why{white-space:normal}\n",
    ".trials thead th{white-space:nowrap}.trials thead button{all:unset;cursor:pointer}"
        ".trials thead button:focus-visible{outline:2px solid var(--c0);outline-offset:2px}\n",
    ".trials thead th[aria-sort=ascending] button::after{content:\" \\2191\"}"
        ".trials thead th[aria-sort=descending] button::after{content:\" \\2193\"}\n",
    "@media (max-width:560px){p.choice{font-size:1rem}"
        ".tiles{grid-template-columns:1fr 1fr;gap:.5rem}.tile b{font-size:1.2rem}"
        ".against{font-size:.86rem}.against td,.against th{padding-right:.6em}"
        "table.against td{min-width:0}.against td:last-child{padding:0}"
        ".against.wide{min-width:33rem}"
        ".against tbody th,.changes tbody th{min-width:4.4em}.changes td:last-child{min-width:0}"
        ".changes{font-size:.86rem}\n",
    ".tile small:last-child{font-size:.76rem}dl.about{grid-template-columns:1fr}"
        "dl.about dd{margin-bottom:.4em}.frame{grid-template-columns:2.9em 1fr .8em}}\n",
    NULL,
};

const char *const tune_script[] = {
    "(function () {\n",
    "  \"use strict\";\n",
    "  var tip = document.getElementById(\"tip\"), all = Array.prototype.slice;\n",
    "  function add(parent, tag, text) {\n",
    "    var e = document.createElement(tag);\n",
    "    e.textContent = text;\n",
    "    parent.appendChild(e);\n",
    "  }\n",
    "  all.call(document.querySelectorAll(\".area\")).forEach(function (area) {\n",
    "    var marks = all.call(area.querySelectorAll(\".mark\")), at = -1;\n",
    "    if (!marks.length) { area.removeAttribute(\"tabindex\"); return; }\n",
    "    marks.forEach(function (m) { m.dataset.tip = m.title; m.removeAttribute(\"title\"); });\n",
    "    marks.sort(function (a, b) { return parseFloat(a.style.left) - parseFloat(b.style.left); "
        "});\n",
    "    function centre(m) {\n",
    "      var box = m.getBoundingClientRect();\n",
    "      return [box.left + box.width / 2, box.top + box.height / 2];\n",
    "    }\n",
    "    function hide() {\n",
    "      if (at >= 0) marks[at].classList.remove(\"on\");\n",
    "      at = -1;\n",
    "      tip.style.display = \"none\";\n",
    "    }\n",
    "    function show(i) {\n",
    "      if (i === at) return;\n",
    "      hide();\n",
    "      at = i;\n",
    "      marks[i].classList.add(\"on\");\n",
    "      tip.textContent = \"\";\n",
    "      marks[i].dataset.tip.split(\"\\n\").forEach(function (line, n) { add(tip, n ? \"div\" : "
        "\"b\", line); });\n",
    "      tip.style.display = \"block\";\n",
    "      var c = centre(marks[i]), w = tip.offsetWidth, h = tip.offsetHeight;\n",
    "      var l = c[0] + 18 + w > innerWidth ? c[0] - 18 - w : c[0] + 18;\n",
    "      var t = l < 4 ? c[1] + 18 : c[1] - h / 2;\n",
    "      if (l < 4 && t + h > innerHeight - 4) t = c[1] - 18 - h;\n",
    "      tip.style.left = Math.min(Math.max(l, 4), Math.max(innerWidth - w - 4, 4)) + \"px\";\n",
    "      tip.style.top = Math.min(Math.max(t, 4), Math.max(innerHeight - h - 4, 4)) + \"px\";\n",
    "    }\n",
    "    function move(e) {\n",
    "      var best = -1, least = e.type === \"pointerdown\" ? 1600 : 900;\n",
    "      marks.forEach(function (m, i) {\n",
    "        var c = centre(m), d = Math.pow(c[0] - e.clientX, 2) + Math.pow(c[1] - e.clientY, "
        "2);\n",
    "        if (d < least) { least = d; best = i; }\n",
    "      });\n",
    "      if (best >= 0) show(best); else hide();\n",
    "    }\n",
    "    area.addEventListener(\"pointermove\", move);\n",
    "    area.addEventListener(\"pointerdown\", move);\n",
    "    area.addEventListener(\"pointerleave\", function (e) { if (e.pointerType !== \"touch\") "
        "hide(); });\n",
    "    area.addEventListener(\"blur\", hide);\n",
    "    addEventListener(\"scroll\", hide, { passive: true });\n",
    "    area.addEventListener(\"keydown\", function (e) {\n",
    "      var to = { ArrowLeft: at < 0 ? marks.length - 1 : at - 1, ArrowRight: at + 1, Home: 0, "
        "End: marks.length - 1 }[e.key];\n",
    "      if (e.key === \"Escape\") hide();\n",
    "      if (to === undefined) return;\n",
    "      e.preventDefault();\n",
    "      show(Math.min(Math.max(to, 0), marks.length - 1));\n",
    "    });\n",
    "  });\n",
    "  function value(row, i) {\n",
    "    var cell = row.children[i], v = cell.dataset.v;\n",
    "    return v === undefined ? cell.textContent : +v;\n",
    "  }\n",
    "  all.call(document.querySelectorAll(\"table.trials\")).forEach(function (table) {\n",
    "    var heads = all.call(table.tHead.rows[0].cells), body = table.tBodies[0];\n",
    "    heads.forEach(function (th, i) {\n",
    "      var button = document.createElement(\"button\"), up = false;\n",
    "      button.textContent = th.textContent || \"mark\";\n",
    "      th.textContent = \"\";\n",
    "      th.appendChild(button);\n",
    "      button.addEventListener(\"click\", function () {\n",
    "        up = !up;\n",
    "        heads.forEach(function (h) { h.removeAttribute(\"aria-sort\"); });\n",
    "        th.setAttribute(\"aria-sort\", up ? \"ascending\" : \"descending\");\n",
    "        all.call(body.rows).sort(function (a, b) {\n",
    "          var x = value(a, i), y = value(b, i);\n",
    "          if ((x === \"\") !== (y === \"\")) return x === \"\" ? 1 : -1;\n",
    "          return (x > y ? 1 : x < y ? -1 : 0) * (up ? 1 : -1);\n",
    "        }).forEach(function (row) { body.appendChild(row); });\n",
    "      });\n",
    "    });\n",
    "  });\n",
    "  document.documentElement.dataset.ready = \"yes\";\n",
    "})();\n",
    NULL,
};
// clang-format on
