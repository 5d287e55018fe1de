#!/usr/bin/env python3
"""tuner_curves.py - draws what bench_tuner --curves wrote: the best setting found so far against
measured seconds.

  bench/tuner_curves.py CURVES.csv > docs/tuner-curves-tiny.svg

One panel per goal. A line is the median over the draws, the band is their middle half.
"""
import bisect
import collections
import csv
import math
import sys

COLOURS = {"tuner": "#c2410c", "parzen": "#0369a1", "random": "#6b7280"}
NAMES = {"tuner": "haggle tune", "parzen": "Parzen estimator", "random": "at random"}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 300, 220, 52, 40, 44, 34
MOST = 0.30  # top of the vertical axis
POINTS = 120


def read(path):
    curves = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    with open(path) as f:
        for row in csv.DictReader(f):
            curves[row["target"]][row["search"]][row["seed"]].append((float(row["seconds"]), float(row["cost_over_best"]) - 1))
    return curves


def at(curve, seconds):
    i = bisect.bisect_right([x for x, _ in curve], seconds)
    return curve[i - 1][1] if i else math.inf


def quantiles(draws, seconds):
    values = sorted(at(c, seconds) for c in draws)
    return [values[min(int(q * len(values)), len(values) - 1)] for q in (0.25, 0.5, 0.75)]


def panel(out, name, searches, left, last):
    first = 0.5
    x = lambda s: left + (math.log(s / first) / math.log(last / first)) * WIDTH
    y = lambda v: TOP + HEIGHT * (1 - min(max(v, 0), MOST) / MOST)
    out.append(f'<text x="{left}" y="{TOP - 12}" class="title">{name}</text>')
    for percent in (0, 10, 20, 30):
        out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(percent / 100):.1f}" y2="{y(percent / 100):.1f}" class="grid"/>')
        out.append(f'<text x="{left - 6}" y="{y(percent / 100) + 4:.1f}" class="tick" text-anchor="end">+{percent} %</text>')
    out.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(0.03):.1f}" y2="{y(0.03):.1f}" class="near"/>')
    for s in (1, 3, 10, 30, 100, 300):
        if first < s < last:
            out.append(f'<line x1="{x(s):.1f}" x2="{x(s):.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" class="grid"/>')
            out.append(f'<text x="{x(s):.1f}" y="{TOP + HEIGHT + 16}" class="tick" text-anchor="middle">{s} s</text>')
    for search in ("random", "parzen", "tuner"):
        draws = list(searches.get(search, {}).values())
        if not draws:
            continue
        end = last if search != "tuner" else max(c[-1][0] for c in draws)
        times = [first * (end / first) ** (i / (POINTS - 1)) for i in range(POINTS)]
        rows = [(t, *quantiles(draws, t)) for t in times]
        rows = [r for r in rows if math.isfinite(r[2])]
        band = [f"{x(t):.1f},{y(hi):.1f}" for t, _, _, hi in rows] + [f"{x(t):.1f},{y(lo):.1f}" for t, lo, _, _ in reversed(rows)]
        out.append(f'<polygon points="{" ".join(band)}" fill="{COLOURS[search]}" opacity="0.13"/>')
        line = " ".join(f"{x(t):.1f},{y(m):.1f}" for t, _, m, _ in rows)
        out.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[search]}" stroke-width="2"/>')


def main():
    curves = read(sys.argv[1])
    targets = [t for t in ("bulk", "interactive", "hybrid") if t in curves]
    last = max(c[-1][0] for t in targets for s in curves[t].values() for c in s.values())
    width = LEFT + len(targets) * (WIDTH + GAP + 20)
    height = TOP + HEIGHT + BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif">',
           "<style>.title{font-size:14px;font-weight:600;fill:#111}.tick{font-size:11px;fill:#444}.grid{stroke:#e5e5e5}"
           ".near{stroke:#16a34a;stroke-dasharray:4 3}</style>",
           f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for i, t in enumerate(targets):
        panel(out, t, curves[t], LEFT + i * (WIDTH + GAP + 20), last)
    x = LEFT
    for search in ("tuner", "parzen", "random"):
        out.append(f'<rect x="{x}" y="{height - 16}" width="14" height="4" fill="{COLOURS[search]}"/>')
        out.append(f'<text x="{x + 20}" y="{height - 10}" class="tick">{NAMES[search]}</text>')
        x += 150
    out.append(f'<text x="{x}" y="{height - 10}" class="tick">dashed: within 3 % of the grid\'s best</text>')
    out.append("</svg>")
    print("\n".join(out))


main()
